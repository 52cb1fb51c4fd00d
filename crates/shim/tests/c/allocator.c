/*
 * A program with an allocator of its own, which maps, advises and unmaps memory under its lock, as
 * jemalloc and tcmalloc do, right between two managed regions. If the shim allocates in a call about
 * memory that is not managed, or waits there for a lock under which it allocates, this hangs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RAM (4UL << 20)
#define ARENA (256UL << 20)
#define PAGE 4096UL
#define ROUNDS 300

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *ground; /* RAM, arena, RAM */
static size_t used;
static volatile unsigned long calls;

/* Never gives memory back, and often tells the kernel about some all the same. */
static void *take(size_t alignment, size_t bytes)
{
	const int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *taken;

	pthread_mutex_lock(&lock);
	if (!ground)
		ground = mmap(NULL, 2 * RAM + ARENA, both, flags | MAP_NORESERVE, -1, 0);
	if (alignment < 16)
		alignment = 16;
	/* The size stands in front, for realloc. */
	used = (used + 16 + alignment - 1) & ~(alignment - 1);
	if (used + bytes > ARENA - 64 * PAGE)
		_exit(7);
	taken = ground + RAM + used;
	((size_t *)taken)[-1] = bytes;
	used += bytes;
	if (++calls % 4 == 0) {
		unsigned char *end = ground + RAM + ARENA - 16 * PAGE;
		void *more = mmap(NULL, PAGE, both, flags, -1, 0);

		if (madvise(end, 16 * PAGE, MADV_DONTNEED) || madvise(end, PAGE, MADV_FREE) ||
		    mprotect(end, PAGE, PROT_READ) || mprotect(end, PAGE, both) ||
		    munmap(more, PAGE))
			_exit(8);
	}
	pthread_mutex_unlock(&lock);
	return taken;
}

void *malloc(size_t bytes)
{
	return take(16, bytes);
}

void free(void *taken)
{
	(void)taken;
}

void *calloc(size_t count, size_t bytes)
{
	return take(16, count * bytes); /* never used before: zero */
}

void *realloc(void *taken, size_t bytes)
{
	void *more = take(16, bytes);

	if (taken) {
		size_t old = ((size_t *)taken)[-1];

		memcpy(more, taken, old < bytes ? old : bytes);
	}
	return more;
}

int posix_memalign(void **taken, size_t alignment, size_t bytes)
{
	*taken = take(alignment, bytes);
	return 0;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	return take(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
	return take(alignment, bytes);
}

static volatile int ends;

static void *allocate_for_ever(void *unused)
{
	while (!ends) {
		void *some = malloc(48);

		free(some);
		usleep(20);
	}
	return unused;
}

int main(void)
{
	const int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	pthread_t thread;

	alarm(60);
	free(malloc(1));
	if (pthread_create(&thread, NULL, allocate_for_ever, NULL))
		return 1;
	if (madvise(ground, RAM, MADV_MERGEABLE) || madvise(ground + RAM + ARENA, RAM, MADV_MERGEABLE))
		return 2;
	memset(ground, 1, RAM);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned char *more = mmap(NULL, 64 * PAGE, both, flags, -1, 0);

		if (more == MAP_FAILED || madvise(more, 64 * PAGE, MADV_MERGEABLE))
			return 3;
		memset(more, round, 64 * PAGE);
		if (madvise(more, 8 * PAGE, MADV_DONTNEED) || more[0] != 0)
			return 4;
		/* The hole may be another thread's by now. */
		if (munmap(more + 16 * PAGE, 16 * PAGE) || munmap(more, 16 * PAGE) ||
		    munmap(more + 32 * PAGE, 32 * PAGE))
			return 5;
	}
	ends = 1;
	if (pthread_join(thread, NULL) || ground[RAM - 1] != 1)
		return 6;
	printf("ok %lu\n", calls);
	return 0;
}
