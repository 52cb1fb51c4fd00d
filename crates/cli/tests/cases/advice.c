/* RAM of which a part is kept out of children: so it stays, merged, written or grown. advice MODE */
#include "case.h"

#define PAGES 1024UL
#define BYTES (PAGES * PAGE)

/* The part that children do not get. */
#define FIRST 100UL
#define COUNT 300UL

static unsigned char *ram;

static int is_mapped(const unsigned char *page)
{
	return msync((void *)page, PAGE, MS_ASYNC) == 0;
}

/* Writes to pages here and there, so that some come back. */
static void write_some(void)
{
	for (size_t page = 0; page < PAGES; page += 7)
		ram[page * PAGE] ^= 0xff;
	for (size_t page = 0; page < PAGES; page += 7)
		ram[page * PAGE] ^= 0xff;
}

/* Tells which pages a child has, of `pages`, and how many of those are wrong. */
static void look_in_child(const unsigned char *memory, size_t pages)
{
	pid_t child;

	fflush(stdout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		size_t had = 0, lost = 0, from = pages, to = 0;

		for (size_t page = 0; page < pages; page++) {
			if (!is_mapped(memory + page * PAGE)) {
				from = page < from ? page : from;
				to = page + 1;
				lost++;
				continue;
			}
			had += page < PAGES && *(const uint64_t *)(memory + page * PAGE) ==
						       next_word(seed_of(page, PAGES, 1));
		}
		printf("a child has %zu pages right and lacks %zu, from %zu to %zu\n", had, lost, from, to);
		fflush(stdout);
		_exit(0);
	}
	CHECK(await_child(child) == 0);
}

static void keep_part(void)
{
	CHECK(madvise(ram + FIRST * PAGE, COUNT * PAGE, MADV_DONTFORK) == 0);
}

static void after(void)
{
	keep_part();
	write_some();
	look_in_child(ram, PAGES);
	CHECK(madvise(ram + 150 * PAGE, 50 * PAGE, MADV_DOFORK) == 0);
	look_in_child(ram, PAGES);
}

static void before(void)
{
	write_some();
	look_in_child(ram, PAGES);
}

/* Grows it, and moves it for that; what it grows by is as its end is. */
static void grown(void)
{
	unsigned char *moved;

	CHECK(madvise(ram + (PAGES - 10) * PAGE, 10 * PAGE, MADV_DONTFORK) == 0);
	write_some();
	moved = mremap(ram + (PAGES - 10) * PAGE, 10 * PAGE, 20 * PAGE, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED);
	look_in_child(moved, 20);
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "";

	ram = mmap(NULL, BYTES, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(ram != MAP_FAILED);
	if (strcmp(mode, "before") == 0)
		keep_part();
	madvise(ram, BYTES, MADV_MERGEABLE);
	if (strcmp(mode, "again") == 0) {
		keep_part();
		madvise(ram, BYTES, MADV_MERGEABLE);
	} else if (strcmp(mode, "resting") == 0) {
		keep_part();
	}
	fill(ram, PAGES, 1);
	await_merged(ram, PAGES);
	if (strcmp(mode, "after") == 0)
		after();
	else if (strcmp(mode, "grown") == 0)
		grown();
	else
		before();
	return 0;
}
