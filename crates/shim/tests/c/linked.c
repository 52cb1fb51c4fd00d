/* A VMM that links the library and says what it does. Prints "ok" or what is wrong. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <bindery.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES (64 * 4096UL)
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("bad: line %d: %s: %s\n", __LINE__, #condition, \
			       bindery_last_error()); \
			return 1; \
		} \
	} while (0)

int main(void)
{
	char *ram = (char *)mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				 -1, 0);
	char *code = (char *)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(ram != MAP_FAILED && code != MAP_FAILED);
	CHECK(strcmp(bindery_last_error(), "") == 0);
	errno = 55;
	CHECK(bindery_manage(ram, BYTES - 100) == 0);
	CHECK(bindery_manage(ram, BYTES) == 0);
	CHECK(errno == 55);
	memset(ram, 7, BYTES);

	CHECK(bindery_manage(code, 4096) == -1);
	CHECK(strstr(bindery_last_error(), "can be merged"));
	CHECK(bindery_manage(ram + 1, 4096) == -1);
	CHECK(strstr(bindery_last_error(), "page"));
	CHECK(errno == 55);

	CHECK(bindery_discard(ram + 4096, 4096) == 0);
	CHECK(ram[4095] == 7 && ram[4096] == 0 && ram[8191] == 0 && ram[8192] == 7);
	CHECK(bindery_discard(ram + 1, 4096) == -1);
	CHECK(strstr(bindery_last_error(), "discarded"));

	CHECK(bindery_forget(ram, 8 * 4096) == 0);
	CHECK(syscall(SYS_munmap, ram, 8 * 4096) == 0);
	CHECK(ram[8 * 4096] == 7);
	CHECK(bindery_release(ram, BYTES) == 0);
	CHECK(bindery_release(ram, BYTES) == 0);
	CHECK(ram[8 * 4096] == 7 && ram[BYTES - 1] == 7);
	CHECK(munmap(ram + 8 * 4096, BYTES - 8 * 4096) == 0);
	printf("ok\n");
	return 0;
}
