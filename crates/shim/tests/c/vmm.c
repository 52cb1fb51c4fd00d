/*
 * A little VMM: offers memory as QEMU does, waits until the test has merged it, does one thing to it,
 * and looks whether it can tell. Says "ready", reads a line, says "ok" or what is wrong.
 *
 *   vmm <backing: anonymous|memfd|file> <action>
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 512UL
#define FILLED 256UL /* pages with a pattern; the others are never touched */
#define KINDS 8UL
#define BYTES (PAGES * PAGE)
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static unsigned char *ram;
static int ram_fd = -1;

static void bad(const char *format, ...)
{
	va_list arguments;

	printf("bad: ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	exit(1);
}

#define CHECK(condition) \
	do { \
		int error_seen = errno; \
		if (!(condition)) \
			bad("line %d: %s (errno %d)", __LINE__, #condition, error_seen); \
	} while (0)

/* The word that page `page` is full of. */
static uint64_t word_of(unsigned long page)
{
	return page < FILLED ? page % KINDS + 1 : 0;
}

static void fill(void)
{
	for (unsigned long page = 0; page < FILLED; page++)
		for (unsigned long at = 0; at < PAGE / 8; at++)
			((uint64_t *)(ram + page * PAGE))[at] = word_of(page);
}

static int page_holds(const unsigned char *page, uint64_t word)
{
	for (unsigned long at = 0; at < PAGE / 8; at++)
		if (((const volatile uint64_t *)page)[at] != word)
			return 0;
	return 1;
}

/* Pages from..to hold their words, seen at `memory`. */
static void expect(const unsigned char *memory, unsigned long from, unsigned long to)
{
	for (unsigned long page = from; page < to; page++)
		if (!page_holds(memory + (page - from) * PAGE, word_of(page)))
			bad("page %lu does not hold %lu", page, (unsigned long)word_of(page));
}

static void expect_zero(unsigned long from, unsigned long to)
{
	for (unsigned long page = from; page < to; page++)
		if (!page_holds(ram + page * PAGE, 0))
			bad("page %lu is not zero", page);
}

/* Pages from..to can be written and keep what is written. */
static void write_through(unsigned long from, unsigned long to)
{
	for (unsigned long page = from; page < to; page++)
		for (unsigned long at = 0; at < PAGE / 8; at++)
			((uint64_t *)(ram + page * PAGE))[at] = page ^ 0xabcdef;
	for (unsigned long page = from; page < to; page++)
		CHECK(page_holds(ram + page * PAGE, page ^ 0xabcdef));
}

/* How many mappings lie in the RAM, and how many of them show a store. */
static unsigned mappings(unsigned *of_store)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	unsigned count = 0;
	char line[512];

	*of_store = 0;
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		if (start >= (unsigned long)ram + BYTES || end <= (unsigned long)ram)
			continue;
		count++;
		*of_store += strstr(line, "/memfd:test-store") != NULL;
	}
	fclose(maps);
	return count;
}

static void expect_no_store(void)
{
	unsigned of_store;

	mappings(&of_store);
	CHECK(of_store == 0);
}

/* ---- actions ---- */

static void act_nothing(void)
{
	expect(ram, 0, PAGES);
}

static void act_write(void)
{
	write_through(0, PAGES);
}

static void act_dontneed(void)
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

static void act_free(void)
{
	CHECK(madvise(ram, FILLED * PAGE, MADV_FREE) == 0);
	for (unsigned long page = 0; page < FILLED; page++)
		CHECK(page_holds(ram + page * PAGE, word_of(page)) ||
		      page_holds(ram + page * PAGE, 0));
	write_through(0, PAGES);
}

static void act_remove(void)
{
	CHECK(madvise(ram, PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
	expect(ram, 0, PAGES);
}

static void act_hints(void)
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

static void act_unmergeable(void)
{
	CHECK(madvise(ram, BYTES, MADV_UNMERGEABLE) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

static void act_unmergeable_then_wait(void)
{
	char line[16];

	CHECK(madvise(ram, BYTES, MADV_UNMERGEABLE) == 0);
	CHECK(fgets(line, sizeof line, stdin));
	expect(ram, 0, PAGES);
}

static void act_again(void)
{
	CHECK(madvise(ram, BYTES, MADV_MERGEABLE) == 0);
	expect(ram, 0, PAGES);
}

static void act_munmap(void)
{
	CHECK(munmap(ram + 100 * PAGE, 50 * PAGE) == 0);
	expect(ram, 0, 100);
	expect(ram + 150 * PAGE, 150, PAGES);
	CHECK(munmap(ram + 1, PAGE) == -1 && errno == EINVAL);
	CHECK(msync(ram + 120 * PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	write_through(0, 100);
	CHECK(munmap(ram, BYTES) == 0);
}

static void act_mmap_over(void)
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

static void act_mremap(void)
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

static void act_mprotect(void)
{
	CHECK(mprotect(ram, BYTES, PROT_READ | PROT_WRITE) == 0);
	CHECK(mprotect(ram + 5 * PAGE, PAGE, PROT_READ) == 0);
	expect(ram, 0, PAGES);
	CHECK(read(open("/dev/zero", O_RDONLY), ram + 5 * PAGE, 1) == -1 && errno == EFAULT);
	CHECK(mprotect(ram, BYTES, PROT_READ | PROT_WRITE) == 0);
	write_through(0, PAGES);
}

static void act_mlock(void)
{
	CHECK(mlock(ram, 16 * PAGE) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	CHECK(munlock(ram, 16 * PAGE) == 0);
}

static void act_mlockall(void)
{
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
	expect_no_store();
	expect(ram, 0, PAGES);
	CHECK(munlockall() == 0);
}

static void act_guard(void)
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

static void act_userfault(void)
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

static void in_child(void (*work)(void))
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

static void act_fork(void)
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

static void act_fork_often(void)
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

/* Every page of DONTFORK memory is gone in the child, merged or not, before or after the advice. */
static void child_has_nothing(void)
{
	int zeros = open("/dev/zero", O_RDONLY);

	for (unsigned long page = 0; page < PAGES; page++)
		CHECK(read(zeros, ram + page * PAGE, 1) == -1 && errno == EFAULT);
}

static void act_dontfork(void)
{
	in_child(child_has_nothing);
	expect(ram, 0, PAGES);
	CHECK(madvise(ram + 8 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
	write_through(20, 30);
	in_child(child_has_nothing);
}

static int pass(int file)
{
	char control[CMSG_SPACE(sizeof file)] = { 0 }, byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	int ends[2], received;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof file);
	memcpy(CMSG_DATA(rights), &file, sizeof file);
	CHECK(sendmsg(ends[0], &message, 0) == 1);
	CHECK(recvmsg(ends[1], &message, 0) == 1);
	memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
	return received;
}

static void act_share(void)
{
	unsigned char *theirs;
	int harmless = pass(open("/dev/null", O_RDONLY)), received;
	unsigned of_store;

	CHECK(harmless >= 0);
	mappings(&of_store);
	CHECK(of_store > 0);
	received = pass(ram_fd);
	theirs = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, received, 0);
	CHECK(theirs != MAP_FAILED);
	expect(theirs, 0, PAGES);
	expect(ram, 0, PAGES);
	/* It is shared memory again. */
	write_through(0, PAGES);
	CHECK(memcmp(theirs, ram, BYTES) == 0);
}

static void act_map_again(void)
{
	unsigned char *again = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, ram_fd, 0);

	CHECK(again != MAP_FAILED);
	expect(again, 0, PAGES);
	write_through(0, PAGES);
	CHECK(memcmp(again, ram, BYTES) == 0);
}

static void act_punch(void)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	/* A mapping of a shared file loses nothing by DONTNEED; a hole in the file takes it away. */
	CHECK(madvise(ram, BYTES, MADV_DONTNEED) == 0);
	expect(ram, 0, PAGES);
	CHECK(madvise(ram, PAGE, MADV_FREE) == -1 && errno == EINVAL);
	CHECK(fallocate(ram_fd, punch, 10 * PAGE, 5 * PAGE) == 0);
	expect_zero(10, 15);
	CHECK(fallocate(ram_fd, punch, 20 * PAGE + 2048, 2 * PAGE) == 0);
	CHECK(((uint64_t *)(ram + 20 * PAGE))[255] == word_of(20));
	CHECK(((uint64_t *)(ram + 20 * PAGE))[256] == 0);
	expect_zero(21, 22);
	CHECK(((uint64_t *)(ram + 22 * PAGE))[255] == 0);
	CHECK(((uint64_t *)(ram + 22 * PAGE))[256] == word_of(22));
	CHECK(madvise(ram + 30 * PAGE, PAGE, MADV_REMOVE) == 0);
	expect_zero(30, 31);
	expect(ram, 0, 10);
	expect(ram + 31 * PAGE, 31, PAGES);
	write_through(0, PAGES);
}

/* ---- everything at once ---- */

static volatile int storm_ends;
static unsigned long storm_rounds[8];

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 11;
}

static void set_page(unsigned char *page, uint64_t word)
{
	for (unsigned long at = 0; at < PAGE / 8; at++)
		((volatile uint64_t *)page)[at] = word;
}

/* Writes to pages of its own, and looks at each before. */
static void *storm_writer(void *argument)
{
	unsigned long me = (unsigned long)argument, first = me * 64;
	uint64_t state = me + 1, words[64];

	for (unsigned long page = 0; page < 64; page++)
		words[page] = word_of(first + page);
	while (!storm_ends) {
		unsigned long page = draw(&state) % 64;
		unsigned char *at = ram + (first + page) * PAGE;

		if (!page_holds(at, words[page]))
			bad("page %lu lost what was written", first + page);
		words[page] = draw(&state) % (KINDS + 1);
		set_page(at, words[page]);
		storm_rounds[me]++;
		if (draw(&state) % 8 == 0)
			usleep(500);
	}
	return NULL;
}

/* Discards pages of its own. */
static void *storm_discarder(void *argument)
{
	unsigned long me = (unsigned long)argument, first = me * 64;
	uint64_t state = me + 1;

	while (!storm_ends) {
		unsigned long page = first + draw(&state) % 48, count = 1 + draw(&state) % 16;

		CHECK(madvise(ram + page * PAGE, count * PAGE, MADV_DONTNEED) == 0);
		expect_zero(page, page + count);
		for (unsigned long at = page; at < page + count; at++)
			set_page(ram + at * PAGE, word_of(at));
		usleep(2000);
		expect(ram + page * PAGE, page, page + count);
		storm_rounds[me]++;
	}
	return NULL;
}

/* Brings memory and takes it away again, in every way there is. */
static void *storm_mapper(void *argument)
{
	unsigned long me = (unsigned long)argument;
	const int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	const unsigned long bytes = 64 * PAGE;

	while (!storm_ends) {
		unsigned char *more = mmap(NULL, bytes, both, flags, -1, 0);

		CHECK(more != MAP_FAILED);
		CHECK(madvise(more, bytes, MADV_MERGEABLE) == 0);
		for (unsigned long page = 0; page < 64; page++)
			set_page(more + page * PAGE, word_of(page));
		usleep(5000);
		expect(more, 0, 64);
		switch (storm_rounds[me]++ % 4) {
		case 0:
			CHECK(munmap(more + 16 * PAGE, 16 * PAGE) == 0);
			expect(more, 0, 16);
			expect(more + 32 * PAGE, 32, 64);
			break;
		case 1:
			CHECK(mmap(more, 8 * PAGE, both, flags | MAP_FIXED, -1, 0) == more);
			CHECK(page_holds(more, 0) && page_holds(more + 7 * PAGE, 0));
			expect(more + 8 * PAGE, 8, 64);
			break;
		case 2:
			CHECK(madvise(more, bytes, MADV_UNMERGEABLE) == 0);
			expect(more, 0, 64);
			break;
		default:
			break;
		}
		CHECK(munmap(more, bytes) == 0);
	}
	return NULL;
}

static void child_looks(void)
{
	expect(ram + 5 * 64 * PAGE, 5 * 64, 6 * 64);
	usleep(1000);
	expect(ram + 5 * 64 * PAGE, 5 * 64, 6 * 64);
}

static void act_storm(void)
{
	static void *(*const works[])(void *) = { storm_writer, storm_writer, storm_discarder,
						  storm_mapper };
	pthread_t threads[4];
	const char *seconds = getenv("STORM_SECONDS");

	for (unsigned long at = 0; at < 4; at++)
		CHECK(pthread_create(&threads[at], NULL, works[at], (void *)at) == 0);
	for (int round = 0; round < 50 * (seconds ? atoi(seconds) : 2); round++) {
		in_child(child_looks);
		usleep(20000);
	}
	storm_ends = 1;
	for (unsigned at = 0; at < 4; at++) {
		CHECK(pthread_join(threads[at], NULL) == 0);
		CHECK(storm_rounds[at] > 10);
	}
	expect(ram + 3 * 64 * PAGE, 3 * 64, PAGES);
}

/* Whether the kernel was told that the RAM may be merged by KSM. */
static int is_left_to_ksm(void)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	int inside = 0, found = 0;
	unsigned long start, end;
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)ram && (unsigned long)ram < end;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, " mg") != NULL;
	}
	fclose(maps);
	return found;
}

static void act_left_to_ksm(void)
{
	if (!is_left_to_ksm()) {
		/* KSM may not be built in. */
		CHECK(access("/sys/kernel/mm/ksm", F_OK) != 0);
	}
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

/* Makes this process one whose memory cannot be managed. */
static void hinder(const char *how)
{
	if (strcmp(how, "locked") == 0) {
		if (mlockall(MCL_FUTURE) != 0) {
			printf("ready\nskipped\n");
			exit(0);
		}
	} else if (strcmp(how, "unprivileged") == 0) {
		FILE *setting = fopen("/proc/sys/vm/unprivileged_userfaultfd", "r");
		int allowed = 1;

		if (!setting || fscanf(setting, "%d", &allowed) != 1 || allowed ||
		    setgid(65534) != 0 || setuid(65534) != 0 ||
		    access("/dev/userfaultfd", R_OK | W_OK) == 0) {
			printf("ready\nskipped\n");
			exit(0);
		}
	}
}

static const struct {
	const char *name;
	void (*act)(void);
} actions[] = {
	{ "nothing", act_nothing },	  { "write", act_write },
	{ "dontneed", act_dontneed },	  { "free", act_free },
	{ "remove", act_remove },	  { "hints", act_hints },
	{ "unmergeable", act_unmergeable },
	{ "unmergeable-then-wait", act_unmergeable_then_wait },
	{ "again", act_again },
	{ "munmap", act_munmap },	  { "mmap-over", act_mmap_over },
	{ "mremap", act_mremap },	  { "mprotect", act_mprotect },
	{ "mlock", act_mlock },		  { "mlockall", act_mlockall },
	{ "guard", act_guard },		  { "userfault", act_userfault },
	{ "fork", act_fork },		  { "fork-often", act_fork_often },
	{ "dontfork", act_dontfork },	  { "share", act_share },
	{ "nothing-at-all", act_nothing }, { "locked", act_left_to_ksm },
	{ "unprivileged", act_left_to_ksm },
	{ "map-again", act_map_again },	  { "punch", act_punch },
	{ "storm", act_storm },
};

static void offer(const char *backing, const char *action)
{
	const int both = PROT_READ | PROT_WRITE;

	if (strcmp(backing, "memfd") == 0) {
		ram_fd = memfd_create("ram", MFD_CLOEXEC);
		CHECK(ram_fd >= 0 && ftruncate(ram_fd, BYTES) == 0);
		ram = mmap(NULL, BYTES, both, MAP_SHARED, ram_fd, 0);
	} else if (strcmp(backing, "file") == 0) {
		FILE *file = tmpfile();

		CHECK(file && ftruncate(fileno(file), BYTES) == 0);
		ram = mmap(NULL, BYTES, both, MAP_SHARED, fileno(file), 0);
	} else {
		ram = mmap(NULL, BYTES, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	CHECK(ram != MAP_FAILED);
	/* As QEMU does for memfds: before memory is offered. */
	if (strcmp(action, "dontfork") == 0 && ram_fd >= 0)
		CHECK(madvise(ram, BYTES, MADV_DONTFORK) == 0);
	errno = 77;
	CHECK(madvise(ram, BYTES, MADV_MERGEABLE) == 0);
	CHECK(errno == 77);
}

int main(int count, char **arguments)
{
	char line[16];

	if (count != 3)
		bad("usage: vmm <backing> <action>");
	/* A test that hangs is a test that failed. */
	alarm(60 + (getenv("STORM_SECONDS") ? atoi(getenv("STORM_SECONDS")) : 0));
	hinder(arguments[2]);
	offer(arguments[1], arguments[2]);
	if (strcmp(arguments[2], "dontfork") == 0 && ram_fd < 0)
		CHECK(madvise(ram, BYTES, MADV_DONTFORK) == 0);
	fill();
	printf("ready\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin));
	for (unsigned at = 0; at < sizeof actions / sizeof actions[0]; at++) {
		if (strcmp(actions[at].name, arguments[2]) != 0)
			continue;
		actions[at].act();
		printf("ok\n");
		return 0;
	}
	bad("no action %s", arguments[2]);
	return 1;
}
