/*
 * What the cases share: memory that is offered, filled and looked at.
 *
 * A case is a program that behaves the same with Bindery as without: same output, same exit status.
 * CASE_MANAGED is set in its environment when it runs under Bindery: only then it waits for merging.
 */
#ifndef CASE_H
#define CASE_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define BOTH (PROT_READ | PROT_WRITE)

/* Exit status of a case whose memory was never merged, so that it showed nothing. */
#define NEVER_MERGED 99

#define CHECK(condition) \
	do { \
		int seen = errno; \
		if (!(condition)) { \
			printf("line %d: %s (%s)\n", __LINE__, #condition, strerror(seen)); \
			fflush(stdout); \
			_exit(1); \
		} \
	} while (0)

static inline int is_managed(void)
{
	return getenv("CASE_MANAGED") != NULL;
}

static inline void rest_ms(long ms)
{
	struct timespec rest = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&rest, &rest) != 0)
		;
}

/* Private memory that was offered to be merged. */
static inline unsigned char *offered(size_t bytes)
{
	unsigned char *memory = mmap(NULL, bytes, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	/* Without KSM in the kernel the advice is refused: nothing is merged then, which is all right. */
	madvise(memory, bytes, MADV_MERGEABLE);
	return memory;
}

/* The first word of page `page` of `pages` in a round: each content is in two pages. */
static inline uint64_t seed_of(size_t page, size_t pages, uint64_t round)
{
	return page % (pages / 2) * 0x9e3779b97f4a7c15 + round * 0xd1b54a32d192ed03 + 1;
}

static inline uint64_t next_word(uint64_t word)
{
	word ^= word << 13;
	word ^= word >> 7;
	return word ^ word << 17;
}

static inline void fill(unsigned char *memory, size_t pages, uint64_t round)
{
	for (size_t page = 0; page < pages; page++) {
		uint64_t *words = (uint64_t *)(memory + page * PAGE), word = seed_of(page, pages, round);

		for (size_t at = 0; at < PAGE / 8; at++)
			words[at] = word = next_word(word);
	}
}

/* How many pages do not hold what `fill` wrote. */
static inline size_t wrong(const unsigned char *memory, size_t pages, uint64_t round)
{
	size_t found = 0;

	for (size_t page = 0; page < pages; page++) {
		const uint64_t *words = (const uint64_t *)(memory + page * PAGE);
		uint64_t word = seed_of(page, pages, round);
		size_t at = 0;

		while (at < PAGE / 8 && words[at] == (word = next_word(word)))
			at++;
		found += at < PAGE / 8;
	}
	return found;
}

static inline size_t not_zero(const unsigned char *memory, size_t bytes)
{
	size_t found = 0;

	for (size_t at = 0; at < bytes; at++)
		found += memory[at] != 0;
	return found;
}

/*
 * How many pages are mapped from a file: those of private memory are so once they are merged. Those that
 * were not read there yet have a marker, which the kernel shows as the last type of swap.
 */
static inline size_t merged(const unsigned char *memory, size_t pages)
{
	int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t found = 0;
	uint64_t entry;

	for (size_t page = 0; page < pages; page++) {
		off_t at = ((uintptr_t)memory / PAGE + page) * sizeof entry;

		if (pread(map, &entry, sizeof entry, at) == sizeof entry)
			found += (entry >> 61 & 1) || ((entry >> 62 & 1) && (entry & 31) == 31);
	}
	close(map);
	return found;
}

/* Waits until all pages are merged, or no more become so; half of them must. */
static inline void await_merged(const unsigned char *memory, size_t pages)
{
	size_t now = 0;

	for (int looks = 0, same = 0; is_managed() && now < pages && (same < 20 || now < pages / 2); looks++) {
		size_t before = now;

		if (looks == 1000) {
			printf("%zu of %zu pages are merged\n", now, pages);
			fflush(stdout);
			_exit(NEVER_MERGED);
		}
		rest_ms(50);
		now = merged(memory, pages);
		same = now == before ? same + 1 : 0;
	}
}

/* Rests as long as merging takes that no program can see: what is offered rests half a second first. */
static inline void rest_for_merging(void)
{
	if (is_managed())
		rest_ms(1000);
}

/* Waits for a child, and returns its exit status; -1 if a signal ended it. */
static inline int await_child(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
