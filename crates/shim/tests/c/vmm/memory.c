/* The RAM and what it is to hold. See vmm.h. */
#include "vmm.h"
#include <stdarg.h>

unsigned char *ram;
int ram_fd = -1;

void bad(const char *format, ...)
{
	va_list arguments;

	printf("bad: ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	exit(1);
}

uint64_t word_of(unsigned long page)
{
	return page < FILLED ? page % KINDS + 1 : 0;
}

int page_holds(const unsigned char *page, uint64_t word)
{
	for (unsigned long at = 0; at < PAGE / 8; at++)
		if (((const volatile uint64_t *)page)[at] != word)
			return 0;
	return 1;
}

void expect(const unsigned char *memory, unsigned long from, unsigned long to)
{
	for (unsigned long page = from; page < to; page++)
		if (!page_holds(memory + (page - from) * PAGE, word_of(page)))
			bad("page %lu does not hold %lu", page, (unsigned long)word_of(page));
}

void expect_zero(unsigned long from, unsigned long to)
{
	for (unsigned long page = from; page < to; page++)
		if (!page_holds(ram + page * PAGE, 0))
			bad("page %lu is not zero", page);
}

void write_through(unsigned long from, unsigned long to)
{
	for (unsigned long page = from; page < to; page++)
		for (unsigned long at = 0; at < PAGE / 8; at++)
			((uint64_t *)(ram + page * PAGE))[at] = page ^ 0xabcdef;
	for (unsigned long page = from; page < to; page++)
		CHECK(page_holds(ram + page * PAGE, page ^ 0xabcdef));
}

unsigned mappings(unsigned *of_store)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	unsigned count = 0;
	char line[512];

	*of_store = 0;
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		if (start >= (unsigned long)ram + BYTES || end <= (unsigned long)ram)
			continue;
		count++;
		*of_store += strstr(line, "/memfd:bindery-store") != NULL;
	}
	fclose(maps);
	return count;
}

void expect_no_store(void)
{
	unsigned of_store;

	mappings(&of_store);
	CHECK(of_store == 0);
}

unsigned long bytes_flagged(const unsigned char *memory, unsigned long bytes, const char *flag)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	unsigned long start, end, inside = 0, flagged = 0;
	const unsigned long first = (unsigned long)memory, last = first + bytes;
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			start = start < first ? first : start;
			end = end > last ? last : end;
			inside = start < end ? end - start : 0;
		} else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, flag)) {
			flagged += inside;
		}
	}
	fclose(maps);
	return flagged;
}
