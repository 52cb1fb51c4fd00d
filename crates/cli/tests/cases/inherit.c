/*
 * A VMM whose RAM is a memfd that whoever started it made, and keeps: inherit FD. Says "filled", waits
 * for a line, and says how many of its pages hold anything but sevens.
 */
#include "case.h"

#define PAGES 1024UL

int main(int count, char **words)
{
	unsigned char *ram;
	size_t other = 0;
	char line[16];

	CHECK(count > 1);
	ram = mmap(NULL, PAGES * PAGE, BOTH, MAP_SHARED, atoi(words[1]), 0);
	CHECK(ram != MAP_FAILED);
	madvise(ram, PAGES * PAGE, MADV_MERGEABLE);
	fill(ram, PAGES, 1);
	rest_for_merging();
	puts("filled");
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin) != NULL);
	for (size_t at = 0; at < PAGES * PAGE; at++)
		other += ram[at] != 7;
	printf("%zu bytes are no sevens\n", other);
	return 0;
}
