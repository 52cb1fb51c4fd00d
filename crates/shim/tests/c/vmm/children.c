/*
 * What a child of fork may do with memory that was merged when it was made: all that it may do with
 * memory of its own. Each check has pages of its own, so that they lie in the store until then.
 */
#include "vmm.h"
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

/* Pages at..at+8 are those of one check. */
static unsigned char *pages(unsigned long at)
{
	return ram + at * PAGE;
}

static void may_discard(void)
{
	CHECK(madvise(pages(0), 8 * PAGE, MADV_DONTNEED) == 0);
	expect_zero(0, 8);
	CHECK(madvise(pages(8), 8 * PAGE, MADV_FREE) == 0);
	for (unsigned long page = 8; page < 16; page++)
		CHECK(page_holds(pages(page), word_of(page)) || page_holds(pages(page), 0));
	CHECK(madvise(pages(16), PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
	expect(pages(16), 16, 24);
	/* What is protected stays so, and part of a piece goes alone. */
	CHECK(mprotect(pages(24), 8 * PAGE, PROT_READ) == 0);
	CHECK(madvise(pages(26), 2 * PAGE, MADV_DONTNEED) == 0);
	expect_zero(26, 28);
	expect(pages(24), 24, 26);
	expect(pages(28), 28, 32);
	CHECK(read(open("/dev/zero", O_RDONLY), pages(26), 1) == -1 && errno == EFAULT);
	CHECK(mprotect(pages(24), 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
	write_through(0, 32);
}

static void may_move(void)
{
	const int flags = MREMAP_MAYMOVE;
	unsigned char *moved = mremap(pages(32), 8 * PAGE, 16 * PAGE, flags), *place;

	CHECK(moved != MAP_FAILED);
	expect(moved, 32, 40);
	CHECK(page_holds(moved + 8 * PAGE, 0) && page_holds(moved + 15 * PAGE, 0));
	place = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mremap(pages(40), 8 * PAGE, 8 * PAGE, flags | MREMAP_FIXED, place) == place);
	expect(place, 40, 48);
	moved = mremap(pages(48), 8 * PAGE, 8 * PAGE, flags | MREMAP_DONTUNMAP, NULL);
	CHECK(moved != MAP_FAILED);
	expect(moved, 48, 56);
	expect_zero(48, 56);
	/* More than lies in one mapping, of the store's and of others. */
	moved = mremap(pages(240), 32 * PAGE, 64 * PAGE, flags);
	CHECK(moved != MAP_FAILED);
	expect(moved, 240, 272);
	for (unsigned long page = 32; page < 64; page++)
		CHECK(page_holds(moved + page * PAGE, 0));
	CHECK(mremap(pages(56), 8 * PAGE, 4 * PAGE, 0) == pages(56));
	expect(pages(56), 56, 60);
	CHECK(mremap(pages(64), 0, PAGE, flags) == MAP_FAILED && errno == EINVAL);
	CHECK(munmap(pages(64), 4 * PAGE) == 0);
	CHECK(msync(pages(64), PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	expect(pages(68), 68, 72);
}

static void may_protect_and_lock(void)
{
	const int both = PROT_READ | PROT_WRITE;
	unsigned char there[8];

	CHECK(mprotect(pages(72), 8 * PAGE, PROT_READ) == 0);
	CHECK(mprotect(pages(72), 8 * PAGE, both | PROT_EXEC) == 0);
	expect(pages(72), 72, 80);
	write_through(72, 80);
	CHECK(mlock(pages(80), 8 * PAGE) == 0);
	CHECK(madvise(pages(80), 8 * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
	expect(pages(80), 80, 88);
	CHECK(munlock(pages(80), 8 * PAGE) == 0);
	CHECK(madvise(pages(88), 8 * PAGE, MADV_POPULATE_WRITE) == 0);
	expect(pages(88), 88, 96);
	CHECK(madvise(pages(88), 8 * PAGE, MADV_DONTNEED) == 0);
	expect_zero(88, 96);
	CHECK(msync(pages(96), 8 * PAGE, MS_SYNC) == 0);
	CHECK(mincore(pages(96), 8 * PAGE, there) == 0);
	expect(pages(96), 96, 104);
}

static void may_guard(void)
{
	int result = madvise(pages(104), 2 * PAGE, MADV_GUARD_INSTALL);

	CHECK(result == 0 || errno == EINVAL);
	if (result == 0) {
		CHECK(read(open("/dev/zero", O_RDONLY), pages(104), 1) == -1 && errno == EFAULT);
		CHECK(madvise(pages(104), 2 * PAGE, MADV_GUARD_REMOVE) == 0);
		expect_zero(104, 106);
	}
	expect(pages(106), 106, 112);
}

static void grandchild_sees(void)
{
	expect_zero(112, 120);
	expect(pages(120), 120, 128);
	CHECK(madvise(pages(120), 8 * PAGE, MADV_DONTNEED) == 0);
	expect_zero(120, 128);
	CHECK(madvise(pages(128), 8 * PAGE, MADV_WIPEONFORK) == 0);
	expect(pages(128), 128, 136);
}

static void may_have_children(void)
{
	CHECK(madvise(pages(112), 8 * PAGE, MADV_WIPEONFORK) == 0);
	expect(pages(112), 112, 120);
	in_child(grandchild_sees);
	expect(pages(112), 112, 136);
	CHECK(madvise(pages(112), 8 * PAGE, MADV_KEEPONFORK) == 0);
}

static void may_watch(void)
{
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { .start = (unsigned long)pages(136), .len = 8 * PAGE },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	CHECK(faults >= 0 && ioctl(faults, UFFDIO_API, &api) == 0);
	CHECK(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
	expect(pages(136), 136, 144);
	write_through(136, 144);
	close(faults);
}

static void may_advise_itself(void)
{
	struct iovec range = { pages(144), 8 * PAGE };
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	ssize_t done = process_madvise(self, &range, 1, MADV_DONTNEED, 0);

	CHECK(done == (ssize_t)(8 * PAGE) || (done == -1 && errno == EINVAL));
	if (done > 0)
		expect_zero(144, 152);
	/* What the C library does not hear of: the same, offered again. */
	CHECK(madvise(pages(152), 8 * PAGE, MADV_MERGEABLE) == 0);
	CHECK(madvise(pages(152), 8 * PAGE, MADV_UNMERGEABLE) == 0);
	CHECK(madvise(pages(152), 8 * PAGE, MADV_NOHUGEPAGE) == 0);
	expect(pages(152), 152, 160);
}

static void *write_beside(void *unused)
{
	(void)unused;
	write_through(160, 200);
	return NULL;
}

static void may_have_threads(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, write_beside, NULL) == 0);
	for (unsigned long page = 200; page < 240; page++)
		CHECK(madvise(pages(page), PAGE, MADV_DONTNEED) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	expect_zero(200, 240);
	for (unsigned long page = 160; page < 200; page++)
		CHECK(page_holds(pages(page), page ^ 0xabcdef));
	expect(pages(272), 272, PAGES);
}

static void child_does_all(void)
{
	unsigned of_store;

	mappings(&of_store);
	CHECK(of_store > 0);
	expect(ram, 0, PAGES);
	may_discard();
	may_move();
	may_protect_and_lock();
	may_guard();
	may_have_children();
	may_watch();
	may_advise_itself();
	may_have_threads();
}

void act_child_advice(void)
{
	in_child(child_does_all);
	expect(ram, 0, PAGES);
	in_child(child_does_all);
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

static void child_executes(void)
{
	execl("/bin/true", "true", (char *)NULL);
	bad("exec");
}

void act_child_executes(void)
{
	in_child(child_executes);
	expect(ram, 0, PAGES);
}

/* Children that no fork handler hears of. */
static void in_clone(void (*work)(void))
{
	int status;
	pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	CHECK(child >= 0);
	if (child == 0) {
		work();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

void act_clone_advice(void)
{
	in_clone(child_does_all);
	expect(ram, 0, PAGES);
}
