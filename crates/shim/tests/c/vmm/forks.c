/* Children that see the memory, and children that do not. */
#include "vmm.h"
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

void in_child(void (*work)(void))
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		work();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		bad("the child ended with %x", status);
}

static void child_reads_and_writes(void)
{
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
	CHECK(madvise(ram, BYTES, MADV_DONTNEED) == 0);
	CHECK(madvise(ram, BYTES, MADV_MERGEABLE) == 0);
	CHECK(munmap(ram, BYTES) == 0);
}

void act_fork(void)
{
	in_child(child_reads_and_writes);
	expect(ram, 0, PAGES);
	in_child(child_reads_and_writes);
	write_through(0, PAGES);
}

static void *touch_for_ever(void *unused)
{
	(void)unused;
	for (unsigned long at = 0;; at++)
		((volatile uint64_t *)(ram + (FILLED + at % 64) * PAGE))[0] = at;
	return NULL;
}

void act_fork_often(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, touch_for_ever, NULL) == 0);
	for (int round = 0; round < 100; round++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		ram[round * PAGE] ^= 1;
		CHECK(waitpid(child, NULL, 0) == child);
		ram[round * PAGE] ^= 1;
	}
	expect(ram, 0, FILLED);
}

/* The child goes on without its parent, and looks at the memory when it is told to. */
static void outlive(int closes)
{
	pid_t parent = getpid(), child = fork();
	char line[16];

	CHECK(child >= 0);
	if (child > 0)
		_exit(0);
	alarm(60);
	if (closes)
		CHECK(close_range(3, ~0U, 0) == 0);
	while (getppid() == parent)
		usleep(1000);
	printf("alone\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin));
	expect(ram, 0, PAGES);
	printf("ok\n");
	fflush(stdout);
	_exit(0);
}

void act_outlive(void)
{
	outlive(0);
}

void act_outlive_closed(void)
{
	outlive(1);
}

/* A child that nobody knows of, which looks at the memory once its parent has had all of it merged anew. */
static volatile int *rewritten;

static int look(void *unused)
{
	(void)unused;
	alarm(60);
	while (!*rewritten)
		usleep(1000);
	expect(ram, 0, PAGES);
	_exit(0);
}

static int look_without_descriptors(void *unused)
{
	CHECK(close_range(3, ~0U, 0) == 0);
	return look(unused);
}

/* As Python's subprocess module does it where there is no close_range(2), and many daemons. */
static int look_like_python(void *unused)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	return look(unused);
}

static void fill_anew(unsigned long round)
{
	for (unsigned long page = 0; page < FILLED; page++)
		for (unsigned long at = 0; at < PAGE / 8; at++)
			((uint64_t *)(ram + page * PAGE))[at] = word_of(page) + 1000 * round;
}

static void expect_anew(unsigned long round)
{
	for (unsigned long page = 0; page < FILLED; page++)
		CHECK(page_holds(ram + page * PAGE, word_of(page) + 1000 * round));
}

static void outlast(pid_t child)
{
	char line[16];
	int status;

	CHECK(child > 0);
	for (unsigned long round = 1; round <= 3; round++) {
		fill_anew(round);
		printf("rewritten\n");
		fflush(stdout);
		CHECK(fgets(line, sizeof line, stdin));
		expect_anew(round);
	}
	*rewritten = 1;
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		bad("the child ended with %x", status);
}

static void share_flag(void)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED);
	rewritten = page;
}

static void outlast_forked(int (*work)(void *), pid_t (*born)(void))
{
	pid_t child;

	share_flag();
	child = born();
	if (child == 0)
		work(NULL);
	outlast(child);
}

static pid_t raw_clone(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

void act_unknown_fork(void)
{
	outlast_forked(look_without_descriptors, fork);
}

void act_unknown_python(void)
{
	outlast_forked(look_like_python, fork);
}

void act_unknown__fork(void)
{
	outlast_forked(look, _Fork);
}

void act_unknown_raw(void)
{
	outlast_forked(look, raw_clone);
}

void act_unknown_clone(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));

	share_flag();
	outlast(clone(look, stack + sizeof stack, SIGCHLD, NULL));
}

/* Every page of DONTFORK memory is gone in the child, merged or not, before or after the advice. */
static void child_has_nothing(void)
{
	int zeros = open("/dev/zero", O_RDONLY);

	for (unsigned long page = 0; page < PAGES; page++)
		CHECK(read(zeros, ram + page * PAGE, 1) == -1 && errno == EFAULT);
}

void act_dontfork(void)
{
	in_child(child_has_nothing);
	expect(ram, 0, PAGES);
	CHECK(madvise(ram + 8 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
	write_through(20, 30);
	in_child(child_has_nothing);
}
