/* What a VMM does to its own memory, one call at a time. */
#include "vmm.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

void act_nothing(void)
{
	expect(ram, 0, PAGES);
}

void act_write(void)
{
	write_through(0, PAGES);
}

void act_dontneed(void)
{
	errno = 123;
	CHECK(madvise(ram + 10 * PAGE, 10 * PAGE - 5, MADV_DONTNEED) == 0);
	CHECK(errno == 123);
	expect_zero(10, 20);
	expect(ram, 0, 10);
	expect(ram + 20 * PAGE, 20, PAGES);
	CHECK(madvise(ram + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
	CHECK(posix_madvise(ram, PAGE, POSIX_MADV_DONTNEED) == 0);
	expect(ram, 0, 10);
	write_through(8, 22);
}

void act_free(void)
{
	CHECK(madvise(ram, FILLED * PAGE, MADV_FREE) == 0);
	for (unsigned long page = 0; page < FILLED; page++)
		CHECK(page_holds(ram + page * PAGE, word_of(page)) ||
		      page_holds(ram + page * PAGE, 0));
	write_through(0, PAGES);
}

void act_remove(void)
{
	CHECK(madvise(ram, PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
	expect(ram, 0, PAGES);
}

/* What is merged, written or discarded stays out of core dumps, until it is advised otherwise. */
void act_dontdump(void)
{
	unsigned of_store;

	mappings(&of_store);
	CHECK(of_store > 0);
	CHECK(bytes_flagged(ram, BYTES, " dd") == BYTES);
	write_through(20, 30);
	CHECK(madvise(ram + 8 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
	write_through(12, 13);
	CHECK(bytes_flagged(ram, BYTES, " dd") == BYTES);
	CHECK(madvise(ram, BYTES, MADV_DODUMP) == 0);
	write_through(40, 50);
	CHECK(madvise(ram + 60 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
	write_through(62, 63);
	CHECK(bytes_flagged(ram, BYTES, " dd") == 0);
	CHECK(madvise(ram, BYTES, MADV_DONTDUMP) == 0);
	CHECK(madvise(ram, BYTES, MADV_UNMERGEABLE) == 0);
	expect_no_store();
	CHECK(bytes_flagged(ram, BYTES, " dd") == BYTES);
}

void act_hints(void)
{
	static const int hints[] = { MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_RANDOM,
				     MADV_SEQUENTIAL, MADV_NORMAL };
	unsigned of_store, before = mappings(&of_store);

	CHECK(of_store > 0);
	for (unsigned at = 0; at < sizeof hints / sizeof hints[0]; at++)
		CHECK(madvise(ram + 64 * PAGE, 64 * PAGE, hints[at]) == 0);
	CHECK(posix_madvise(ram + 32 * PAGE, PAGE, POSIX_MADV_RANDOM) == 0);
	CHECK(mappings(&of_store) == before);
	errno = 0;
	CHECK(posix_madvise(ram + 1, PAGE, POSIX_MADV_RANDOM) == EINVAL && errno == 0);
	expect(ram, 0, PAGES);
}

void act_unmergeable(void)
{
	CHECK(madvise(ram, BYTES, MADV_UNMERGEABLE) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

void act_unmergeable_then_wait(void)
{
	char line[16];

	CHECK(madvise(ram, BYTES, MADV_UNMERGEABLE) == 0);
	CHECK(fgets(line, sizeof line, stdin));
	expect(ram, 0, PAGES);
}

void act_again(void)
{
	CHECK(madvise(ram, BYTES, MADV_MERGEABLE) == 0);
	expect(ram, 0, PAGES);
}

/* Unmaps every second page: what is left stays as it was. */
void act_tear(void)
{
	for (unsigned long page = 0; page < PAGES; page += 2)
		CHECK(munmap(ram + page * PAGE, PAGE) == 0);
	for (unsigned long page = 1; page < PAGES; page += 2)
		expect(ram + page * PAGE, page, page + 1);
	CHECK(msync(ram + 100 * PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
}

/* Offers more ranges than are taken: all hold what they held. */
void act_many(void)
{
	const unsigned long ranges = 20000;
	char line[16];
	unsigned char *all = mmap(NULL, 2 * ranges * PAGE, PROT_NONE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(all != MAP_FAILED);
	for (unsigned long range = 0; range < ranges; range++) {
		unsigned char *page = all + 2 * range * PAGE;

		CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
		CHECK(madvise(page, PAGE, MADV_MERGEABLE) == 0);
		*(unsigned long *)page = range;
	}
	CHECK(fgets(line, sizeof line, stdin));
	for (unsigned long range = 0; range < ranges; range++)
		CHECK(*(unsigned long *)(all + 2 * range * PAGE) == range);
}

void act_munmap(void)
{
	CHECK(munmap(ram + 100 * PAGE, 50 * PAGE) == 0);
	expect(ram, 0, 100);
	expect(ram + 150 * PAGE, 150, PAGES);
	CHECK(munmap(ram + 1, PAGE) == -1 && errno == EINVAL);
	CHECK(msync(ram + 120 * PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	write_through(0, 100);
	CHECK(munmap(ram, BYTES) == 0);
}

void act_mmap_over(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *place = ram + 60 * PAGE;

	CHECK(mmap(place, PAGE, PROT_READ, flags | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
	CHECK(errno == EEXIST);
	expect(ram, 0, PAGES);
	/* A call that fails takes nothing away. */
	CHECK(mmap(place, 9 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, 9999, 0) == MAP_FAILED);
	CHECK(errno == EBADF);
	expect(ram, 0, PAGES);
	CHECK(mmap(place, 20 * PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == place);
	expect_zero(60, 80);
	expect(ram, 0, 60);
	expect(ram + 80 * PAGE, 80, PAGES);
	write_through(50, 90);
}

void act_mremap(void)
{
	unsigned char *moved;

	/* Shrinking in place, then moving what is left. */
	CHECK(mremap(ram, BYTES, BYTES - 100 * PAGE, 0) == ram);
	expect(ram, 0, PAGES - 100);
	moved = mremap(ram, BYTES - 100 * PAGE, BYTES, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED);
	expect(moved, 0, PAGES);
	ram = moved;
	write_through(FILLED, PAGES);
	/* To a place of our choice, where something is. */
	moved = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mremap(ram, BYTES, 300 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved);
	CHECK(msync(ram, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	CHECK(msync(ram + BYTES - PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	expect(moved, 0, FILLED);
	ram = moved;
	write_through(0, 300);
}

/* Has every mapping taken that the process may have, until they are given back. */
static unsigned char *crowd_mappings(unsigned long bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	unsigned char *crowd = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
	unsigned long at = 0;

	CHECK(crowd != MAP_FAILED);
	while (at < bytes && mprotect(crowd + at, PAGE, PROT_READ) == 0)
		at += 2 * PAGE;
	CHECK(at < bytes && errno == ENOMEM);
	return crowd;
}

/* A page that was written when no mapping was to be had is a copy in a mapping of the store. */
void act_mremap_of_copies(void)
{
	unsigned long bytes = 1UL << 32;
	unsigned char *crowd = crowd_mappings(bytes), *moved;

	write_through(3, 4);
	CHECK(munmap(crowd, bytes) == 0);
	CHECK(mremap(ram, BYTES, 2 * BYTES, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
	expect(ram, 0, 3);
	expect(ram + 4 * PAGE, 4, PAGES);
	write_through(3, 4);
	/* Nobody's once it is thrown away. */
	CHECK(madvise(ram + 3 * PAGE, PAGE, MADV_DONTNEED) == 0);
	expect_zero(3, 4);
	moved = mremap(ram, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED);
	ram = moved;
	expect(ram, 0, 3);
	expect_zero(3, 4);
	expect(ram + 4 * PAGE, 4, PAGES);
}

void act_mprotect(void)
{
	CHECK(mprotect(ram, BYTES, PROT_READ | PROT_WRITE) == 0);
	CHECK(mprotect(ram + 5 * PAGE, PAGE, PROT_READ) == 0);
	expect(ram, 0, PAGES);
	CHECK(read(open("/dev/zero", O_RDONLY), ram + 5 * PAGE, 1) == -1 && errno == EFAULT);
	CHECK(mprotect(ram, BYTES, PROT_READ | PROT_WRITE) == 0);
	write_through(0, PAGES);
}

void act_mlock(void)
{
	CHECK(mlock(ram, 16 * PAGE) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	CHECK(munlock(ram, 16 * PAGE) == 0);
}

void act_mlockall(void)
{
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	CHECK(munlockall() == 0);
}

void act_guard(void)
{
	/* From Linux 6.13 on; before, EINVAL without us as well. */
	int result = madvise(ram + 30 * PAGE, PAGE, MADV_GUARD_INSTALL);

	CHECK(result == 0 || errno == EINVAL);
	if (result == 0)
		CHECK(write(open("/dev/null", O_WRONLY), "", 1) == 1 &&
		      read(open("/dev/zero", O_RDONLY), ram + 30 * PAGE, 1) == -1 &&
		      errno == EFAULT);
	expect(ram, 0, 30);
	expect(ram + 31 * PAGE, 31, PAGES);
}

void act_userfault(void)
{
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { .start = (unsigned long)ram, .len = BYTES },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	CHECK(faults >= 0);
	CHECK(ioctl(faults, UFFDIO_API, &api) == 0);
	/* As a program does that keeps requests in an int. */
	CHECK(ioctl(faults, (int)UFFDIO_REGISTER, &range) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}
