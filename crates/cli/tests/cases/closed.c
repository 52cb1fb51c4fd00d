/*
 * A program that closes all descriptors after it has offered memory. closed MODE: "plain", "pipes" (it
 * opens pipes of its own in their place), "dup" (it puts its own over them one by one), "children" (a
 * child of its own does).
 */
#include "case.h"
#include <signal.h>
#include <sys/resource.h>

#define PAGES 4096UL
#define PIPES 40

static const char text[] = "what was written comes out again, all of it and nothing else";
static int pipes[PIPES][2];
static int opened;

static void close_all(void)
{
	CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
}

/* Closes every descriptor that it finds by number, and leaves others there. */
static void put_others_over_all(void)
{
	int zero = open("/dev/zero", O_RDONLY);

	for (int number = 3; number < 1024; number++)
		if (number != zero && fcntl(number, F_GETFD) >= 0)
			CHECK(dup2(zero, number) == number);
}

static void open_pipes(void)
{
	for (opened = 0; opened < PIPES; opened++)
		CHECK(pipe(pipes[opened]) == 0);
}

/* How many pipes lost or gained data, or were closed by somebody else. */
static int damaged_pipes(void)
{
	int damaged = 0;
	char back[sizeof text];

	for (int at = 0; at < opened; at++)
		damaged += write(pipes[at][1], text, sizeof text) != sizeof text;
	rest_ms(300);
	for (int at = 0; at < opened; at++) {
		fcntl(pipes[at][0], F_SETFL, O_NONBLOCK);
		damaged += read(pipes[at][0], back, sizeof back) != sizeof back || memcmp(back, text, sizeof text);
	}
	return damaged;
}

static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "plain";
	unsigned char *ram = offered(PAGES * PAGE);
	double before;

	signal(SIGPIPE, SIG_IGN);
	fill(ram, PAGES, 1);
	await_merged(ram, PAGES);
	if (strcmp(mode, "dup") == 0)
		put_others_over_all();
	else
		close_all();
	if (strcmp(mode, "pipes") == 0)
		open_pipes();
	before = cpu_seconds();
	rest_ms(1000);
	printf("idle: %s\n", cpu_seconds() - before < 0.5 ? "rests" : "burns CPU");
	printf("pipes damaged: %d\n", damaged_pipes());
	printf("wrong before writing: %zu\n", wrong(ram, PAGES, 1));
	fill(ram, PAGES, 2);
	printf("wrong after writing: %zu\n", wrong(ram, PAGES, 2));
	CHECK(madvise(ram, PAGES / 2 * PAGE, MADV_DONTNEED) == 0);
	printf("bytes left after discarding: %zu\n", not_zero(ram, PAGES / 2 * PAGE));
	printf("pipes damaged: %d\n", damaged_pipes());
	CHECK(munmap(ram, PAGES * PAGE) == 0);
	return 0;
}
