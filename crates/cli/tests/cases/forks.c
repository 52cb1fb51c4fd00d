/*
 * A child of each kind keeps the bytes that it was born with, while its parent writes others that are
 * merged in their place. forks MODE; "close" in it: the child closes all descriptors first, as daemons
 * do; "write": it writes to all of its memory in the end.
 */
#include "case.h"
#include <sched.h>
#include <signal.h>

#define PAGES 4096UL
#define ROUNDS 4

extern pid_t _Fork(void);

static const char *mode;
static unsigned char *ram;
static volatile int *is_over; /* shared with the child */

static int has(const char *word)
{
	return strstr(mode, word) != NULL;
}

static int live_as_child(void)
{
	size_t bad = 0;

	if (has("close"))
		syscall(SYS_close_range, 3, ~0U, 0);
	while (!*is_over && bad == 0)
		bad = wrong(ram, PAGES, 1);
	bad += wrong(ram, PAGES, 1);
	if (has("write")) {
		fill(ram, PAGES, 9);
		bad += wrong(ram, PAGES, 9);
		CHECK(munmap(ram, PAGES / 2 * PAGE) == 0);
	}
	return bad != 0;
}

static int enter_child(void *unused)
{
	(void)unused;
	_exit(live_as_child());
}

static pid_t make_child(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	pid_t child;

	if (has("clone"))
		return clone(enter_child, stack + sizeof stack, SIGCHLD, NULL);
	if (has("raw"))
		child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	else if (has("_Fork"))
		child = _Fork();
	else
		child = fork();
	if (child == 0)
		enter_child(NULL);
	return child;
}

/* Writes to all memory and offers as much of other content, which may be merged where slots were given up. */
static size_t write_and_merge(int round)
{
	unsigned char *more = offered(PAGES * PAGE);
	size_t bad;

	fill(ram, PAGES, round);
	fill(more, PAGES, round + 100);
	/* Merging may pause while a child lives. */
	rest_for_merging();
	bad = wrong(ram, PAGES, round) + wrong(more, PAGES, round + 100);
	CHECK(munmap(more, PAGES * PAGE) == 0);
	return bad;
}

int main(int count, char **words)
{
	size_t bad = 0;
	pid_t child;

	mode = count > 1 ? words[1] : "fork";
	is_over = mmap(NULL, PAGE, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ram = offered(PAGES * PAGE);
	fill(ram, PAGES, 1);
	await_merged(ram, PAGES);
	child = make_child();
	CHECK(child > 0);
	for (int round = 2; round < 2 + ROUNDS; round++)
		bad += write_and_merge(round);
	*is_over = 1;
	printf("%s: the child says %d, ", mode, await_child(child));
	printf("%zu pages of its parent wrong\n", bad);
	return bad != 0;
}
