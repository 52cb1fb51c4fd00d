/*
 * A preload library that offers every private anonymous mapping of at least OFFER_BYTES (1 MiB) to be
 * merged, as a VMM offers its guest's memory. It stands before Bindery's, which takes the offers once they
 * have rested: after each of the first OFFER_RESTS (0) it waits for that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Longer than an offer rests before it is taken, and whoever takes it needs to do so. */
#define REST_MS 600

typedef void *map_call(void *, size_t, int, int, int, off_t);

static size_t least_bytes(void)
{
	static size_t bytes;

	if (bytes == 0) {
		const char *text = getenv("OFFER_BYTES");

		bytes = text != NULL ? strtoul(text, NULL, 0) : 1 << 20;
	}
	return bytes;
}

static void rest(void)
{
	static atomic_int rests, is_known;
	struct timespec time = { 0, REST_MS * 1000000L };

	if (!atomic_exchange(&is_known, 1)) {
		const char *text = getenv("OFFER_RESTS");

		atomic_fetch_add(&rests, text != NULL ? atoi(text) : 0);
	}
	if (atomic_fetch_sub(&rests, 1) > 0)
		while (nanosleep(&time, &time) != 0)
			;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
	const int wanted = MAP_PRIVATE | MAP_ANONYMOUS, unwanted = MAP_HUGETLB | MAP_STACK | MAP_GROWSDOWN;
	static map_call *next;
	void *mapped;

	if (next == NULL)
		next = (map_call *)dlsym(RTLD_NEXT, "mmap");
	mapped = next(address, bytes, protection, flags, file, offset);
	if (mapped != MAP_FAILED && (flags & (wanted | unwanted)) == wanted && protection & PROT_WRITE &&
	    bytes >= least_bytes()) {
		int before = errno;

		madvise(mapped, bytes, MADV_MERGEABLE);
		rest();
		errno = before;
	}
	return mapped;
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
	return mmap(address, bytes, protection, flags, file, offset);
}
