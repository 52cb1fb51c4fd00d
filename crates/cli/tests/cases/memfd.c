/* A VMM whose RAM is a shared memfd: whatever else reaches the file sees the same bytes. memfd MODE */
#include "case.h"
#include <sys/sendfile.h>
#include <sys/socket.h>

#define PAGES 1024UL
#define BYTES (PAGES * PAGE)

static int file;
static unsigned char *ram;
static unsigned char copy[BYTES];

static void report(const char *mode, size_t bad)
{
	printf("%s: %zu of %lu pages wrong\n", mode, bad, PAGES);
	exit(bad != 0);
}

/* Keeps the descriptor over execve and maps it again, as QEMU's cpr-exec does. */
static size_t exec_itself(void)
{
	char number[16];

	snprintf(number, sizeof number, "%d", file);
	execl("/proc/self/exe", "memfd", "after", number, (char *)NULL);
	return PAGES;
}

static size_t read_file(void)
{
	CHECK(pread(file, copy, BYTES, 0) == (ssize_t)BYTES);
	return wrong(copy, PAGES, 1);
}

static size_t write_file(void)
{
	fill(copy, PAGES, 2);
	CHECK(pwrite(file, copy, BYTES, 0) == (ssize_t)BYTES);
	return wrong(ram, PAGES, 2);
}

static size_t truncate_file(void)
{
	CHECK(ftruncate(file, 0) == 0 && ftruncate(file, BYTES) == 0);
	return not_zero(ram, BYTES);
}

static size_t punch_file(void)
{
	CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES / 2) == 0);
	return not_zero(ram, BYTES / 2) + (wrong(ram, PAGES, 1) != PAGES / 2);
}

/* Content of the file as another file shows it that it was copied to. */
static size_t read_other(int other)
{
	CHECK(pread(other, copy, BYTES, 0) == (ssize_t)BYTES);
	return wrong(copy, PAGES, 1);
}

static size_t send_file(void)
{
	int other = memfd_create("other", 0);
	off_t from = 0;

	while (from < (off_t)BYTES)
		CHECK(sendfile(other, file, &from, BYTES - from) > 0);
	return read_other(other);
}

static size_t copy_range(void)
{
	int other = memfd_create("other", 0);
	off_t from = 0, to = 0;

	while (from < (off_t)BYTES)
		CHECK(copy_file_range(file, &from, other, &to, BYTES - from, 0) > 0);
	return read_other(other);
}

static size_t splice_file(void)
{
	int pipes[2];
	off_t from = 0;

	CHECK(pipe(pipes) == 0);
	for (size_t at = 0; at < BYTES;) {
		ssize_t moved = splice(file, &from, pipes[1], NULL, 65536, 0);

		CHECK(moved > 0);
		for (ssize_t left = moved; left > 0;) {
			ssize_t got = read(pipes[0], copy + at, left);

			CHECK(got > 0);
			at += got;
			left -= got;
		}
	}
	return wrong(copy, PAGES, 1);
}

static size_t child_writes(void)
{
	pid_t child = fork();

	if (child == 0) {
		fill(ram, PAGES, 2);
		_exit(0);
	}
	return await_child(child) ? PAGES : wrong(ram, PAGES, 2);
}

static size_t child_reads(void)
{
	int pipes[2];
	char go;
	pid_t child;

	CHECK(pipe(pipes) == 0);
	child = fork();
	if (child == 0)
		_exit(read(pipes[0], &go, 1) != 1 || wrong(ram, PAGES, 2) != 0);
	fill(ram, PAGES, 2);
	CHECK(write(pipes[1], "", 1) == 1);
	return await_child(child) ? PAGES : 0;
}

static size_t child_maps(void)
{
	pid_t child = fork();

	if (child == 0) {
		unsigned char *again = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0);

		_exit(again == MAP_FAILED || wrong(again, PAGES, 1) != 0);
	}
	return await_child(child) ? PAGES : 0;
}

static size_t map_again(void)
{
	unsigned char *again = mmap(NULL, BYTES, BOTH, MAP_SHARED, file, 0);

	CHECK(again != MAP_FAILED && wrong(again, PAGES, 1) == 0);
	fill(again, PAGES, 2);
	return wrong(ram, PAGES, 2);
}

/* Length 0 makes a second mapping of shared memory. */
static size_t alias(void)
{
	unsigned char *again = mremap(ram, 0, BYTES, MREMAP_MAYMOVE);

	CHECK(again != MAP_FAILED && wrong(again, PAGES, 1) == 0);
	fill(again, PAGES, 2);
	return wrong(ram, PAGES, 2);
}

/* Another process has the file by way of /proc, without any call of ours. */
static size_t seen_by_path(void)
{
	char path[64];
	int other;

	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	other = open(path, O_RDWR);
	CHECK(other >= 0);
	return read_other(other);
}

/* System calls that no library stands in front of. */
static size_t raw_calls(void)
{
	CHECK(syscall(SYS_pread64, file, copy, BYTES, 0) == (ssize_t)BYTES);
	CHECK(wrong(copy, PAGES, 1) == 0);
	fill(copy, PAGES, 2);
	CHECK(syscall(SYS_pwrite64, file, copy, BYTES, 0) == (ssize_t)BYTES);
	return wrong(ram, PAGES, 2);
}

static const struct {
	const char *mode;
	size_t (*act)(void);
} modes[] = {
	{ "exec", exec_itself },	{ "exec-now", exec_itself },
	{ "pread", read_file },		{ "pwrite", write_file },
	{ "truncate", truncate_file },	{ "punch", punch_file },
	{ "sendfile", send_file },	{ "copy-file-range", copy_range },
	{ "splice", splice_file },	{ "fork", child_writes },
	{ "fork-parent", child_reads }, { "fork-map", child_maps },
	{ "map-again", map_again },	{ "alias", alias },
	{ "by-path", seen_by_path },	{ "raw", raw_calls },
};

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "";

	if (strcmp(mode, "after") == 0) {
		unsigned char *again = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, atoi(words[2]), 0);

		CHECK(again != MAP_FAILED);
		report("exec", wrong(again, PAGES, 1));
	}
	file = memfd_create("ram", 0);
	CHECK(file >= 0 && ftruncate(file, BYTES) == 0);
	ram = mmap(NULL, BYTES, BOTH, MAP_SHARED, file, 0);
	CHECK(ram != MAP_FAILED);
	madvise(ram, BYTES, MADV_MERGEABLE);
	fill(ram, PAGES, 1);
	if (strcmp(mode, "exec-now") != 0)
		rest_for_merging();
	for (size_t at = 0; at < sizeof modes / sizeof modes[0]; at++)
		if (strcmp(mode, modes[at].mode) == 0)
			report(mode, modes[at].act());
	return 2;
}
