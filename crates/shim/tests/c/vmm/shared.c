/*
 * Shared memory, which others can look at past the mapping that was offered: it is left as it is, and
 * whatever they do, they see what the program has there.
 */
#include "vmm.h"
#include <sys/sendfile.h>
#include <sys/wait.h>

static const uint64_t other = 0x5eed;

static void expect_left_alone(void)
{
	CHECK(bytes_flagged(ram, BYTES, " um") == 0 && bytes_flagged(ram, BYTES, " uw") == 0);
	expect(ram, 0, PAGES);
}

static void expect_file(int file)
{
	static unsigned char content[BYTES];

	CHECK(pread(file, content, BYTES, 0) == (ssize_t)BYTES);
	expect(content, 0, PAGES);
}

static void act_read_write(void)
{
	uint64_t seen;

	expect_file(ram_fd);
	CHECK(pwrite(ram_fd, &other, sizeof other, 0) == sizeof other);
	CHECK(*(volatile uint64_t *)ram == other);
	((volatile uint64_t *)ram)[1] = other;
	CHECK(pread(ram_fd, &seen, sizeof seen, 8) == sizeof seen && seen == other);
}

static void act_copy(void)
{
	int copy = memfd_create("copy", MFD_CLOEXEC), ends[2];
	loff_t from = 0;
	off_t start = 0;
	unsigned long left = BYTES;
	char page[PAGE];

	while (left > 0) {
		ssize_t done = sendfile(copy, ram_fd, &start, left);

		CHECK(done > 0);
		left -= done;
	}
	expect_file(copy);
	/* Not every file system has it for every other. */
	CHECK(ftruncate(copy, 0) == 0 && lseek(copy, 0, SEEK_SET) == 0);
	if (copy_file_range(ram_fd, &from, copy, NULL, BYTES, 0) == (ssize_t)BYTES)
		expect_file(copy);
	from = 5 * PAGE;
	CHECK(pipe(ends) == 0 && splice(ram_fd, &from, ends[1], NULL, PAGE, 0) == (ssize_t)PAGE);
	CHECK(read(ends[0], page, PAGE) == (ssize_t)PAGE);
	CHECK(page_holds((unsigned char *)page, word_of(5)));
}

static void act_truncate(void)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	CHECK(fallocate(ram_fd, punch, 10 * PAGE, 5 * PAGE) == 0);
	expect_zero(10, 15);
	expect(ram + 15 * PAGE, 15, PAGES);
	CHECK(ftruncate(ram_fd, 0) == 0 && ftruncate(ram_fd, BYTES) == 0);
	expect_zero(0, PAGES);
}

static void child_writes(void)
{
	*(volatile uint64_t *)ram = other;
}

static void child_maps(void)
{
	unsigned char *again = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, ram_fd, 0);

	CHECK(again != MAP_FAILED);
	expect(again, 0, PAGES);
}

static void act_child_writes(void)
{
	in_child(child_writes);
	CHECK(*(volatile uint64_t *)ram == other);
}

static void act_child_maps(void)
{
	in_child(child_maps);
}

static void act_parent_writes(void)
{
	int ends[2], status;
	pid_t child;
	char byte;

	CHECK(pipe(ends) == 0);
	child = fork();
	if (child == 0)
		_exit(read(ends[0], &byte, 1) != 1 || *(volatile uint64_t *)ram != other);
	*(volatile uint64_t *)ram = other;
	CHECK(write(ends[1], "", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
}

static void act_alias(void)
{
	unsigned char *alias = mremap(ram, 0, BYTES, MREMAP_MAYMOVE);

	CHECK(alias != MAP_FAILED);
	expect(alias, 0, PAGES);
	write_through(0, PAGES);
	CHECK(memcmp(alias, ram, BYTES) == 0);
}

static void act_map_again(void)
{
	unsigned char *again = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, ram_fd, 0);

	CHECK(again != MAP_FAILED);
	expect(again, 0, PAGES);
	write_through(0, PAGES);
	CHECK(memcmp(again, ram, BYTES) == 0);
}

/* As a VMM that is updated while its guest lives. */
static void act_exec(void)
{
	char number[16];

	CHECK(fcntl(ram_fd, F_SETFD, 0) == 0);
	sprintf(number, "%d", ram_fd);
	execl("/proc/self/exe", "vmm", "after-exec", number, (char *)NULL);
	bad("exec");
}

void after_exec(const char *number)
{
	ram_fd = atoi(number);
	ram = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ram_fd, 0);
	CHECK(ram != MAP_FAILED);
	expect(ram, 0, PAGES);
	printf("ok\n");
}

static const struct {
	const char *name;
	void (*act)(void);
} ways[] = {
	{ "read-write", act_read_write },   { "copy", act_copy },
	{ "truncate", act_truncate },	    { "child-writes", act_child_writes },
	{ "child-maps", act_child_maps },   { "parent-writes", act_parent_writes },
	{ "alias", act_alias },		    { "map-again", act_map_again },
	{ "exec", act_exec },
};

int act_shared(const char *name)
{
	for (unsigned at = 0; at < sizeof ways / sizeof ways[0]; at++) {
		if (strcmp(ways[at].name, name) != 0)
			continue;
		expect_left_alone();
		ways[at].act();
		return 1;
	}
	return 0;
}
