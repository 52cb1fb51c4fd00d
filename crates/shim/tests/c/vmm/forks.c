/* Children that see the memory, and children that do not. */
#include "vmm.h"
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
