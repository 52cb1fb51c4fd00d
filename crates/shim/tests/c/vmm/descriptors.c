/* A program that closes descriptors which it does not know, uses their numbers, and hands all to others. */
#include "vmm.h"
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define PIPES 40

static void is_all_right(void)
{
	expect(ram, 0, PAGES);
	write_through(0, FILLED / 2);
	CHECK(madvise(ram, 64 * PAGE, MADV_DONTNEED) == 0);
	expect_zero(0, 64);
	CHECK(madvise(ram + 64 * PAGE, 64 * PAGE, MADV_UNMERGEABLE) == 0);
	write_through(FILLED / 2, FILLED);
	CHECK(munmap(ram, BYTES) == 0);
}

void act_close_range(void)
{
	CHECK(close_range(3, ~0U, 0) == 0);
	is_all_right();
}

void act_close_range_unshare(void)
{
	CHECK(close_range(3, ~0U, CLOSE_RANGE_UNSHARE) == 0);
	is_all_right();
}

void act_closefrom(void)
{
	closefrom(3);
	is_all_right();
}

void act_close_each(void)
{
	for (int number = 3; number < 4096; number++)
		close(number);
	is_all_right();
}

void act_dup_over(void)
{
	for (int number = 3; number < 512; number++)
		CHECK(dup2(0, number) == number);
	is_all_right();
}

void act_few_descriptors(void)
{
	const struct rlimit few = { 8, 8 };

	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	is_all_right();
}

/* What is written into the program's own pipes comes out of them, and nothing else. */
void act_own_pipes(void)
{
	const char text[] = "0123456789012345678901234567890123456789012345678901234567890123";
	int pipes[PIPES][2];
	char read_back[2 * sizeof text];

	CHECK(close_range(3, ~0U, 0) == 0);
	for (int at = 0; at < PIPES; at++)
		CHECK(pipe2(pipes[at], O_NONBLOCK) == 0);
	for (int at = 0; at < PIPES; at++)
		CHECK(write(pipes[at][1], text, sizeof text) == sizeof text);
	usleep(300000);
	for (int at = 0; at < PIPES; at++) {
		CHECK(read(pipes[at][0], read_back, sizeof read_back) == sizeof text);
		CHECK(memcmp(read_back, text, sizeof text) == 0);
		CHECK(close(pipes[at][1]) == 0);
		CHECK(read(pipes[at][0], read_back, sizeof read_back) == 0);
	}
	is_all_right();
}

/* Standard input, output and error, and what the test had open already: nothing that came since. */
void act_nothing_of_ours(void)
{
	char path[64], name[256];

	for (int number = 3; number < 4096; number++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", number);
		ssize_t length = readlink(path, name, sizeof name - 1);

		if (length < 0)
			continue;
		name[length] = 0;
		if (fcntl(number, F_GETFD) & FD_CLOEXEC)
			bad("descriptor %d is %s", number, name);
	}
	is_all_right();
}

/* A daemon as of daemon(3) that closes all, in Python's manner too. */
void act_daemon(void)
{
	int result[2];
	char said = 0;
	pid_t child;

	CHECK(pipe(result) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		dup2(result[1], 3);
		CHECK(daemon(1, 1) == 0);
		closefrom(4);
		expect(ram, 0, PAGES);
		write_through(0, FILLED);
		CHECK(write(3, "k", 1) == 1);
		_exit(0);
	}
	CHECK(close(result[1]) == 0);
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(read(result[0], &said, 1) == 1 && said == 'k');
	is_all_right();
}

/* Another program in this process has all descriptors that there are. */
void act_exec_keeping(void)
{
	static const char script[] =
		"case \"$(ls -l /proc/$$/fd)\" in\n"
		"*userfaultfd*|*memfd*|*pagemap*|*eventfd*|*socket*) ls -l /proc/$$/fd ;;\n"
		"*) echo ok ;;\n"
		"esac\n";

	for (int number = 3; number < 4096; number++)
		fcntl(number, F_SETFD, 0);
	unsetenv("LD_PRELOAD");
	execl("/bin/sh", "sh", "-c", script, NULL);
	bad("exec");
}

/* Standard error is a pipe of this program's own, whose end is to be seen by who reads it. */
static int read_errors;

void hinder_errors(void)
{
	int errors[2];

	CHECK(pipe2(errors, O_CLOEXEC) == 0);
	CHECK(dup2(errors[1], 2) == 2 && close(errors[1]) == 0);
	read_errors = errors[0];
}

void act_errors_end(void)
{
	struct pollfd errors = { .fd = read_errors, .events = POLLIN };
	char said[4096];
	ssize_t length;

	CHECK(mlock(ram, PAGE) == 0);
	CHECK(poll(&errors, 1, 20000) == 1);
	length = read(read_errors, said, sizeof said - 1);
	CHECK(length > 0);
	said[length] = 0;
	CHECK(strstr(said, "bindery: ") != NULL);
	CHECK(close(2) == 0);
	do {
		CHECK(poll(&errors, 1, 20000) == 1);
	} while (read(read_errors, said, sizeof said) > 0);
	CHECK(munlock(ram, PAGE) == 0);
}

/* Nobody reads standard error any more: what the library says there is lost, and nothing else. */
void act_errors_broken(void)
{
	CHECK(close(read_errors) == 0);
	CHECK(mlock(ram, PAGE) == 0);
	expect(ram, 0, PAGES);
	write_through(0, FILLED);
}
