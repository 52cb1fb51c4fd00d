/* A program that offers many ranges, with holes between them. regions COUNT */
#include "case.h"

#define PAGES 16UL
#define BYTES (PAGES * PAGE)

static unsigned char *ram;

static unsigned char *range(long number)
{
	return ram + number * 2 * BYTES;
}

int main(int count, char **words)
{
	long ranges = count > 1 ? atol(words[1]) : 100;
	size_t bad = 0;
	time_t start = time(NULL);

	ram = mmap(NULL, ranges * 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(ram != MAP_FAILED);
	for (long at = 0; at < ranges; at++) {
		CHECK(mprotect(range(at), BYTES, BOTH) == 0);
		madvise(range(at), BYTES, MADV_MERGEABLE);
		fill(range(at), PAGES, 1);
	}
	/* Linear: two milliseconds each, on a machine that does much else. */
	printf("offering is %s\n", time(NULL) - start <= 2 + ranges / 500 ? "quick" : "slow");
	await_merged(range(0), PAGES);
	for (long at = 0; at < ranges; at++)
		bad += wrong(range(at), PAGES, 1);
	for (long at = 0; at < ranges; at++)
		fill(range(at), PAGES, at);
	rest_for_merging();
	for (long at = 0; at < ranges; at++)
		bad += wrong(range(at), PAGES, at);
	for (long at = 0; at < ranges; at += 2)
		CHECK(munmap(range(at), BYTES) == 0);
	for (long at = 1; at < ranges; at += 2)
		bad += wrong(range(at), PAGES, at);
	printf("pages wrong: %zu\n", bad);
	return bad != 0;
}
