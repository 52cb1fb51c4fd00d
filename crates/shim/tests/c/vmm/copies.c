/* Children that are copies of the program, by each way there is, while its pages are merged. */
#include "vmm.h"
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ROUNDS 60

static uint64_t round_word(unsigned long page, unsigned round)
{
	return (page + round) % KINDS + 1;
}

static void rewrite(unsigned round)
{
	for (unsigned long page = 0; page < FILLED; page++)
		for (unsigned long at = 0; at < PAGE / 8; at++)
			((uint64_t *)(ram + page * PAGE))[at] = round_word(page, round);
}

static int is_round(unsigned round)
{
	for (unsigned long page = 0; page < FILLED; page++)
		if (!page_holds(ram + page * PAGE, round_word(page, round)))
			return 0;
	return 1;
}

static unsigned current;

/* The child has what there was at its birth, can write it, and its advice is about memory of its own. */
static int child(void *unused)
{
	(void)unused;
	if (!is_round(current))
		return 1;
	syscall(SYS_close_range, 3, ~0U, 0);
	rewrite(current + 1);
	return !is_round(current + 1);
}

static pid_t by_fork(void)
{
	return fork();
}

static pid_t by_Fork(void)
{
	extern pid_t _Fork(void);

	return _Fork();
}

static pid_t by_clone(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));

	return clone(child, stack + sizeof stack, SIGCHLD, NULL);
}

static pid_t by_syscall_clone(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static pid_t by_syscall_clone3(void)
{
	uint64_t arguments[11] = { [4] = SIGCHLD };

	return syscall(SYS_clone3, arguments, sizeof arguments);
}

static pid_t by_syscall_fork(void)
{
#ifdef SYS_fork
	return syscall(SYS_fork);
#else
	return by_syscall_clone();
#endif
}

static void in_copies(pid_t (*make)(void))
{
	for (current = 1; current < 1 + 2 * ROUNDS; current += 2) {
		int status;
		pid_t made;

		rewrite(current);
		usleep(1000);
		made = make();
		CHECK(made >= 0);
		if (made == 0)
			_exit(child(NULL));
		rewrite(current + 1);
		CHECK(waitpid(made, &status, 0) == made);
		if (status != 0)
			bad("round %u: the child ended with %x", current, status);
		CHECK(is_round(current + 1));
	}
}

void act_copies_fork(void)
{
	in_copies(by_fork);
}

void act_copies_Fork(void)
{
	in_copies(by_Fork);
}

void act_copies_clone(void)
{
	in_copies(by_clone);
}

void act_copies_syscall_clone(void)
{
	in_copies(by_syscall_clone);
}

void act_copies_syscall_clone3(void)
{
	in_copies(by_syscall_clone3);
}

void act_copies_syscall_fork(void)
{
	in_copies(by_syscall_fork);
}

static int sharing(void *unused)
{
	(void)unused;
	write_through(0, FILLED);
	CHECK(madvise(ram, 8 * PAGE, MADV_DONTNEED) == 0);
	CHECK(close_range(3, ~0U, 0) == 0);
	return 0;
}

/* A child that shares the memory is none: what it does there, this process sees. */
void act_sharing_child(void)
{
	static char stack[1 << 20] __attribute__((aligned(16)));
	int status;
	pid_t made = clone(sharing, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);

	CHECK(made > 0 && waitpid(made, &status, 0) == made && status == 0);
	expect_zero(0, 8);
	write_through(0, FILLED);
}

/* Calls about memory that are made by their numbers. */
void act_by_number(void)
{
	expect(ram, 0, PAGES);
	CHECK(syscall(SYS_madvise, ram, 64 * PAGE, MADV_DONTNEED) == 0);
	expect_zero(0, 64);
	errno = 77;
	CHECK(syscall(SYS_madvise, ram + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
	errno = 77;
	CHECK(syscall(SYS_getpid) == getpid() && errno == 77);
	CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
	CHECK(syscall(SYS_mprotect, ram + 64 * PAGE, PAGE, PROT_READ) == 0);
	CHECK(syscall(SYS_mprotect, ram + 64 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	write_through(64, FILLED);
	CHECK((unsigned char *)syscall(SYS_mmap, ram, 8 * PAGE, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L) == ram);
	expect_zero(0, 8);
	CHECK(syscall(SYS_munmap, ram, BYTES) == 0);
}
