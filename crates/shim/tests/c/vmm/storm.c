/* Everything at once: threads that write, discard, map and unmap, beside forks. */
#include "vmm.h"
#include <time.h>

static volatile int storm_ends;
static unsigned long storm_rounds[8];

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 11;
}

static void set_page(unsigned char *page, uint64_t word)
{
	for (unsigned long at = 0; at < PAGE / 8; at++)
		((volatile uint64_t *)page)[at] = word;
}

/* Writes to pages of its own, and looks at each before. */
static void *storm_writer(void *argument)
{
	unsigned long me = (unsigned long)argument, first = me * 64;
	uint64_t state = me + 1, words[64];

	for (unsigned long page = 0; page < 64; page++)
		words[page] = word_of(first + page);
	while (!storm_ends) {
		unsigned long page = draw(&state) % 64;
		unsigned char *at = ram + (first + page) * PAGE;

		if (!page_holds(at, words[page]))
			bad("page %lu lost what was written", first + page);
		words[page] = draw(&state) % (KINDS + 1);
		set_page(at, words[page]);
		storm_rounds[me]++;
		if (draw(&state) % 8 == 0)
			usleep(500);
	}
	return NULL;
}

/* Discards pages of its own. */
static void *storm_discarder(void *argument)
{
	unsigned long me = (unsigned long)argument, first = me * 64;
	uint64_t state = me + 1;

	while (!storm_ends) {
		unsigned long page = first + draw(&state) % 48, count = 1 + draw(&state) % 16;

		CHECK(madvise(ram + page * PAGE, count * PAGE, MADV_DONTNEED) == 0);
		expect_zero(page, page + count);
		for (unsigned long at = page; at < page + count; at++)
			set_page(ram + at * PAGE, word_of(at));
		usleep(2000);
		expect(ram + page * PAGE, page, page + count);
		storm_rounds[me]++;
	}
	return NULL;
}

/* Brings memory and takes it away again, in every way there is. */
static void *storm_mapper(void *argument)
{
	unsigned long me = (unsigned long)argument;
	const int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	const unsigned long bytes = 64 * PAGE;

	while (!storm_ends) {
		unsigned char *more = mmap(NULL, bytes, both, flags, -1, 0);

		CHECK(more != MAP_FAILED);
		CHECK(madvise(more, bytes, MADV_MERGEABLE) == 0);
		for (unsigned long page = 0; page < 64; page++)
			set_page(more + page * PAGE, word_of(page));
		usleep(5000);
		expect(more, 0, 64);
		switch (storm_rounds[me]++ % 4) {
		case 0:
			CHECK(munmap(more + 16 * PAGE, 16 * PAGE) == 0);
			expect(more, 0, 16);
			expect(more + 32 * PAGE, 32, 64);
			break;
		case 1:
			CHECK(mmap(more, 8 * PAGE, both, flags | MAP_FIXED, -1, 0) == more);
			CHECK(page_holds(more, 0) && page_holds(more + 7 * PAGE, 0));
			expect(more + 8 * PAGE, 8, 64);
			break;
		case 2:
			CHECK(madvise(more, bytes, MADV_UNMERGEABLE) == 0);
			expect(more, 0, 64);
			break;
		default:
			break;
		}
		CHECK(munmap(more, bytes) == 0);
	}
	return NULL;
}

static void child_looks(void)
{
	expect(ram + 5 * 64 * PAGE, 5 * 64, 6 * 64);
	usleep(1000);
	expect(ram + 5 * 64 * PAGE, 5 * 64, 6 * 64);
}

void act_storm(void)
{
	static void *(*const works[])(void *) = { storm_writer, storm_writer, storm_discarder,
						  storm_mapper };
	pthread_t threads[4];
	const char *seconds = getenv("STORM_SECONDS");
	/* One more: the first may be almost over. */
	const time_t end = time(NULL) + (seconds ? atoi(seconds) : 2) + 1;

	for (unsigned long at = 0; at < 4; at++)
		CHECK(pthread_create(&threads[at], NULL, works[at], (void *)at) == 0);
	while (time(NULL) < end) {
		in_child(child_looks);
		usleep(20000);
	}
	storm_ends = 1;
	for (unsigned at = 0; at < 4; at++) {
		CHECK(pthread_join(threads[at], NULL) == 0);
		CHECK(storm_rounds[at] > 10);
	}
	expect(ram + 3 * 64 * PAGE, 3 * 64, PAGES);
}
