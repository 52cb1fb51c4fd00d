/* What a VMM makes of its memory: protected, sealed, moved elsewhere. */
#include "vmm.h"
#include <dlfcn.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* Memory that is written and run: what comes back after a write has the protection, too. */
void act_mprotect_exec(void)
{
	const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
	unsigned char *page = ram + 5 * PAGE;

	errno = 123;
	CHECK(mprotect(ram, FILLED * PAGE, all) == 0);
	CHECK(errno == 123);
	expect(ram, 0, PAGES);
#ifdef __x86_64__
	for (unsigned long at = 0; at < FILLED; at++) {
		page = ram + at * PAGE;
		memcpy(page, "\xb8\x2a\0\0\0\xc3", 6);
		CHECK(((int (*)(void))page)() == 42);
	}
#else
	page[0] = 1;
#endif
	CHECK(mprotect(ram + 1, PAGE, all) == -1 && errno == EINVAL);
}

/* A key of its own, where the processor has them; none at all changes nothing. */
void act_pkey(void)
{
	const int both = PROT_READ | PROT_WRITE;
	unsigned of_store;
	int key;

	CHECK(pkey_mprotect(ram, BYTES, both, -1) == 0);
	mappings(&of_store);
	CHECK(of_store > 0);
	expect(ram, 0, PAGES);
	key = pkey_alloc(0, PKEY_DISABLE_WRITE);
	if (key < 0) {
		CHECK(pkey_mprotect(ram, BYTES, both, 7) == -1 && errno == EINVAL);
	} else {
		CHECK(pkey_mprotect(ram, BYTES, both, key) == 0);
		CHECK(read(open("/dev/zero", O_RDONLY), ram, 1) == -1 && errno == EFAULT);
		CHECK(pkey_set(key, 0) == 0);
	}
	expect_no_store();
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

/* Linux 6.10: memory that can be unmapped, replaced and moved no more, and is written as ever. */
void act_mseal(void)
{
	int (*seal)(void *, size_t, unsigned long) = dlsym(RTLD_DEFAULT, "mseal");
	int result;

	CHECK(seal);
	result = seal(ram, BYTES, 0);
	CHECK(result == 0 || errno == ENOSYS);
	if (result == 0)
		CHECK(munmap(ram, BYTES) == -1 && errno == EPERM);
	expect_no_store();
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

/* What is merged is of no node of ours, and what comes back is of those that the memory is bound to. */
void act_mbind(void)
{
	long (*bind)(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned) =
		dlsym(RTLD_DEFAULT, "mbind");
	const unsigned long first = 1, none = 0;
	unsigned of_store;
	int mode;

	CHECK(bind);
	if (bind(ram, BYTES, MPOL_BIND, &first, 65, 0) == -1) {
		CHECK(errno == ENOSYS);
		return;
	}
	mappings(&of_store);
	CHECK(of_store > 0);
	CHECK(bind(ram, BYTES, MPOL_BIND, &none, 65, 0) == -1 && errno == EINVAL);
	CHECK(bind(ram, BYTES, MPOL_BIND, (void *)16, 65, 0) == -1 && errno == EFAULT);
	CHECK(bind(ram, BYTES, MPOL_BIND, &first, 65, 1u << 20) == -1 && errno == EINVAL);
	CHECK(bind(ram + 1, BYTES, MPOL_BIND, &first, 65, 0) == -1 && errno == EINVAL);
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
	for (unsigned long at = 0; at < PAGES; at++) {
		CHECK(syscall(SYS_get_mempolicy, &mode, NULL, 0, ram + at * PAGE, MPOL_F_ADDR) == 0);
		CHECK(mode == MPOL_BIND);
	}
	CHECK(syscall(SYS_mbind, ram, BYTES, MPOL_DEFAULT, NULL, 0, MPOL_MF_STRICT) == 0);
}

/* Linux 6.13 lets a process advise itself so; before, EINVAL. */
void act_process_madvise(void)
{
	struct iovec ranges[] = { { ram + 3 * PAGE, 5 * PAGE }, { ram + 20 * PAGE, PAGE } };
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	ssize_t done = process_madvise(self, ranges, 2, MADV_DONTNEED, 0);

	CHECK(done == 6 * (ssize_t)PAGE || (done == -1 && errno == EINVAL));
	if (done > 0) {
		expect_zero(3, 8);
		expect_zero(20, 21);
	}
	expect(ram + 8 * PAGE, 8, 20);
	expect(ram + 21 * PAGE, 21, PAGES);
	CHECK(process_madvise(self, ranges, 2, MADV_DONTNEED, 1) == -1 && errno == EINVAL);
	write_through(0, PAGES);
}

/* What the memory is from the beginning keeps it from being taken: no other mapping would be so. */
void act_wiped_on_fork(void)
{
	const int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *memory = mmap(NULL, 64 * PAGE, both, flags, -1, 0);

	CHECK(memory != MAP_FAILED && madvise(memory, 64 * PAGE, MADV_WIPEONFORK) == 0);
	CHECK(madvise(memory, 64 * PAGE, MADV_MERGEABLE) == 0);
	/* Longer than what is offered rests. */
	sleep(2);
	CHECK(bytes_flagged(memory, 64 * PAGE, " um") == 0);
	CHECK(bytes_flagged(memory, 64 * PAGE, " wf") == 64 * PAGE);
	expect(ram, 0, PAGES);
}

/* What is left behind is empty, and mapped. */
void act_mremap_dontunmap(void)
{
	const int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
	unsigned char *moved = mremap(ram, BYTES, BYTES, flags, NULL), *place;

	CHECK(moved != MAP_FAILED && moved != ram);
	expect(moved, 0, PAGES);
	expect_zero(0, PAGES);
	write_through(0, PAGES);
	expect(moved, 0, PAGES);
	place = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ram = moved;
	CHECK(mremap(ram, 64 * PAGE, 64 * PAGE, flags | MREMAP_FIXED, place + 9 * PAGE) ==
	      place + 9 * PAGE);
	expect(place + 9 * PAGE, 0, 64);
	expect_zero(0, 64);
	expect(ram + 64 * PAGE, 64, PAGES);
}

/* What the kernel refuses is refused, and nothing else happens. */
void act_mremap_refused(void)
{
	unsigned of_store, before;
	unsigned char *other = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mappings(&before);
	CHECK(mremap(ram, 0, BYTES, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(ram, BYTES, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(ram + 1, PAGE, PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(ram, BYTES, 2 * BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK(mremap(ram, BYTES, BYTES, MREMAP_FIXED, other) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(ram, 9 * PAGE, 9 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, ram + PAGE) ==
	      MAP_FAILED && errno == EINVAL);
	mappings(&of_store);
	CHECK(of_store == before && of_store > 0);
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

/* From one place in it to another, as the kernel's selftest has it. */
void act_mremap_within(void)
{
	const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;

	CHECK(mremap(ram + 64 * PAGE, 16 * PAGE, 16 * PAGE, flags, ram + 16 * PAGE) ==
	      ram + 16 * PAGE);
	expect(ram, 0, 16);
	expect(ram + 16 * PAGE, 64, 80);
	expect(ram + 32 * PAGE, 32, 64);
	CHECK(msync(ram + 64 * PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	expect(ram + 80 * PAGE, 80, PAGES);
	write_through(0, 64);
	write_through(80, PAGES);
}

/* What linux/userfaultfd.h has since Linux 6.8. */
struct move {
	uint64_t dst, src, len, mode;
	int64_t move;
};

/* Pages move out of the memory by a userfaultfd of the program's own, which watches other memory. */
void act_userfault_move(void)
{
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	unsigned char *place = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 16 /* UFFD_FEATURE_MOVE */ };
	struct uffdio_register range = {
		.range = { .start = (unsigned long)place, .len = 64 * PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	struct move move = { .len = PAGE };
	struct uffdio_zeropage zero = {
		.range = { .start = (unsigned long)(ram + (FILLED + 3) * PAGE), .len = PAGE },
	};

	CHECK(faults >= 0 && ioctl(faults, UFFDIO_API, &api) == 0);
	CHECK(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
	for (unsigned page = 0; page < 8; page++) {
		move.dst = (unsigned long)(place + page * PAGE);
		move.src = (unsigned long)(ram + (8 + page) * PAGE);
		CHECK(ioctl(faults, _IOWR(0xAA, 5, struct move), &move) == 0);
		CHECK(move.move == (int64_t)PAGE);
	}
	expect(place, 8, 16);
	expect_zero(8, 16);
	/* Many at once, which lie in mappings of their own by now; then some that are not there. */
	move.dst = (unsigned long)(place + 8 * PAGE);
	move.src = (unsigned long)(ram + 16 * PAGE);
	move.len = 40 * PAGE;
	CHECK(ioctl(faults, _IOWR(0xAA, 5, struct move), &move) == 0);
	CHECK(move.move == (int64_t)(40 * PAGE));
	expect(place + 8 * PAGE, 16, 56);
	expect_zero(16, 56);
	CHECK(madvise(ram + 60 * PAGE, PAGE, MADV_DONTNEED) == 0);
	move.dst = (unsigned long)(place + 48 * PAGE);
	move.src = (unsigned long)(ram + 60 * PAGE);
	move.len = PAGE;
	CHECK(ioctl(faults, _IOWR(0xAA, 5, struct move), &move) == -1 && errno == ENOENT);
	expect(ram, 0, 8);
	expect(ram + 56 * PAGE, 56, 60);
	expect(ram + 61 * PAGE, 61, PAGES);
	/* Memory that it does not watch. */
	CHECK(ioctl(faults, UFFDIO_ZEROPAGE, &zero) == -1 && errno == ENOENT);
	write_through(0, PAGES);
}
