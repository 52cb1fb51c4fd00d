/* Others that write to the memory, or run in it: the kernel does it for them, page by page. */
#include "vmm.h"
#include <spawn.h>
#include <sys/uio.h>
#include <sys/wait.h>

extern char **environ;

static void write_page_of_parent(unsigned long page, uint64_t word)
{
	uint64_t words[PAGE / 8];
	struct iovec here = { words, PAGE }, there = { ram + page * PAGE, PAGE };

	for (unsigned long at = 0; at < PAGE / 8; at++)
		words[at] = word;
	CHECK(process_vm_writev(getppid(), &here, 1, &there, 1, 0) == (ssize_t)PAGE);
}

/* A merged page, the one behind it, and one that was never touched. */
static void child_writes_to_its_parent(void)
{
	write_page_of_parent(3, 77);
	write_page_of_parent(4, 78);
	write_page_of_parent(FILLED + 9, 79);
}

void act_written_from_outside(void)
{
	in_child(child_writes_to_its_parent);
	CHECK(page_holds(ram + 3 * PAGE, 77) && page_holds(ram + 4 * PAGE, 78));
	CHECK(page_holds(ram + (FILLED + 9) * PAGE, 79));
	expect(ram, 0, 3);
	expect(ram + 5 * PAGE, 5, FILLED + 9);
	write_through(0, PAGES);
}

static void *write_for_ever(void *unused)
{
	(void)unused;
	for (unsigned long at = 0;; at++)
		((volatile uint64_t *)(ram + (FILLED + at % 64) * PAGE))[0] = at;
	return NULL;
}

/* Programs started from it: children that share its memory until they execute, and then have none. */
void act_spawn(void)
{
	char *const arguments[] = { "true", NULL };
	pthread_t thread;
	pid_t child;
	int status;

	CHECK(pthread_create(&thread, NULL, write_for_ever, NULL) == 0);
	for (unsigned long round = 0; round < 50; round++) {
		unsetenv("LD_PRELOAD");
		CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		child = vfork();
		if (child == 0) {
			/* Its memory is its parent's, and a merged page comes back for both. */
			((volatile uint64_t *)(ram + round * PAGE))[1] = 1000 + round;
			_exit(7);
		}
		CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
		CHECK(((volatile uint64_t *)(ram + round * PAGE))[1] == 1000 + round);
		CHECK(((volatile uint64_t *)(ram + round * PAGE))[2] == word_of(round));
	}
	expect(ram + 50 * PAGE, 50, FILLED);
}
