/* RAM that is protected anew after it was merged, and used so. protect MODE */
#include "case.h"
#include <setjmp.h>
#include <signal.h>

#define PAGES 1024UL
#define BYTES (PAGES * PAGE)

static unsigned char *ram;
static sigjmp_buf back;

static void leave(int signal)
{
	siglongjmp(back, signal);
}

/* How many pages refuse to be written or read. */
static size_t refused(int is_write)
{
	volatile size_t found = 0, page;

	for (page = 0; page < PAGES; page++) {
		volatile unsigned char *at = ram + page * PAGE;

		if (sigsetjmp(back, 1) != 0)
			found++;
		else if (is_write)
			*at = *at;
		else
			(void)*at;
	}
	return found;
}

/* Code that returns 42 is written to each page and called. */
static void execute(void)
{
	size_t right = 0;

	CHECK(mprotect(ram, BYTES, BOTH | PROT_EXEC) == 0);
	for (size_t page = 0; page < PAGES; page++) {
		memcpy(ram + page * PAGE, "\xb8\x2a\0\0\0\xc3", 6);
		right += ((int (*)(void))(uintptr_t)(ram + page * PAGE))() == 42;
	}
	printf("executed: %zu\n", right);
}

static void protect(int protection)
{
	CHECK(mprotect(ram, BYTES, protection) == 0);
	printf("reads refused: %zu, ", refused(0));
	printf("writes refused: %zu\n", refused(1));
	CHECK(mprotect(ram, BYTES, BOTH) == 0);
}

/* Every second page: as many mappings as there are pages. */
static void protect_pages(void)
{
	for (size_t page = 0; page < PAGES; page += 2)
		CHECK(mprotect(ram + page * PAGE, PAGE, PROT_READ) == 0);
	printf("writes refused: %zu\n", refused(1));
	CHECK(mprotect(ram, BYTES, BOTH) == 0);
}

/* A key that forbids writing. Without keys in the CPU there is nothing to see. */
static void protect_by_key(void)
{
	int key = pkey_alloc(0, PKEY_DISABLE_WRITE);

	if (key < 0) {
		puts("no keys");
		return;
	}
	CHECK(pkey_mprotect(ram, BYTES, BOTH, key) == 0);
	printf("reads refused: %zu, ", refused(0));
	printf("writes refused: %zu\n", refused(1));
	CHECK(pkey_set(key, 0) == 0);
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "execute";

	signal(SIGSEGV, leave);
	ram = offered(BYTES);
	fill(ram, PAGES, 1);
	await_merged(ram, PAGES);
	if (strcmp(mode, "execute") == 0)
		execute();
	else if (strcmp(mode, "read") == 0)
		protect(PROT_READ);
	else if (strcmp(mode, "none") == 0)
		protect(PROT_NONE);
	else if (strcmp(mode, "read-execute") == 0)
		protect(PROT_READ | PROT_EXEC);
	else if (strcmp(mode, "pages") == 0)
		protect_pages();
	else if (strcmp(mode, "key") == 0)
		protect_by_key();
	if (strcmp(mode, "execute") != 0)
		printf("wrong: %zu\n", wrong(ram, PAGES, 1));
	fill(ram, PAGES, 2);
	printf("wrong after writing: %zu\n", wrong(ram, PAGES, 2));
	return 0;
}
