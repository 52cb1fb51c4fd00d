/* RAM that is moved after it was merged, in the rarer ways. move MODE */
#include "case.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#define PAGES 1024UL
#define BYTES (PAGES * PAGE)

static unsigned char *ram;

/* Moves the pages and leaves the mapping, empty. */
static void keep_mapped(void)
{
	unsigned char *moved = mremap(ram, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);

	CHECK(moved != MAP_FAILED);
	printf("moved wrong: %zu, ", wrong(moved, PAGES, 1));
	printf("left: %zu\n", not_zero(ram, BYTES));
	fill(ram, PAGES, 2);
	printf("written wrong: %zu\n", wrong(ram, PAGES, 2) + wrong(moved, PAGES, 1));
}

/* Length 0 is for shared memory only. */
static void alias(void)
{
	void *again = mremap(ram, 0, BYTES, MREMAP_MAYMOVE);

	printf("%s (%s), wrong: %zu\n", again == MAP_FAILED ? "refused" : "done",
	       again == MAP_FAILED ? strerror(errno) : "fine", wrong(ram, PAGES, 1));
}

static void fixed(void)
{
	unsigned char *room = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(room != MAP_FAILED);
	CHECK(mremap(ram, BYTES, 2 * BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
	printf("moved wrong: %zu, grown: %zu\n", wrong(room, PAGES, 1), not_zero(room + BYTES, BYTES));
	CHECK(mremap(room, 2 * BYTES, BYTES / 2, 0) == room);
	fill(room, PAGES / 2, 2);
	printf("written wrong: %zu\n", wrong(room, PAGES / 2, 2));
}

/* Only the half in the middle. */
static void part(void)
{
	unsigned char *room = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *half = ram + BYTES / 4;
	unsigned char *copy = malloc(BYTES);

	CHECK(room != MAP_FAILED && copy != NULL);
	memcpy(copy, ram, BYTES);
	CHECK(mremap(half, BYTES / 2, BYTES / 2, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
	memcpy(copy, ram, BYTES / 4);
	memcpy(copy + BYTES / 4, room, BYTES / 2);
	memcpy(copy + BYTES / 4 * 3, ram + BYTES / 4 * 3, BYTES / 4);
	printf("wrong: %zu\n", wrong(copy, PAGES, 1));
}

/* The program has a userfaultfd of its own, and moves pages out of merged memory. */
static void by_userfault(void)
{
	int file = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	unsigned char *room = mmap(NULL, BYTES, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (uintptr_t)room, BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct { uint64_t to, from, bytes, mode; int64_t moved; } move = { (uintptr_t)room, (uintptr_t)ram, BYTES, 0, 0 };

	if (file < 0 || ioctl(file, UFFDIO_API, &api) != 0 || ioctl(file, UFFDIO_REGISTER, &range) != 0) {
		puts("no userfaultfd");
		return;
	}
	/* UFFDIO_MOVE, newer than the C library's headers. */
	if (ioctl(file, _IOWR(0xaa, 5, move), &move) != 0)
		printf("%s, ", strerror(errno));
	/* Nobody serves faults: pages that were not moved are zeros from now on. */
	close(file);
	printf("moved %lld, wrong: %zu\n", (long long)move.moved, wrong(room, PAGES, 1));
}

/* A move onto merged memory that the kernel refuses leaves it: what is discarded there is zero. */
static void refused(void)
{
	unsigned char *other = mmap(NULL, BYTES, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *moved = mremap(other, 0, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, ram);

	CHECK(moved == MAP_FAILED);
	printf("%s, wrong: %zu, ", strerror(errno), wrong(ram, PAGES, 1));
	CHECK(madvise(ram, BYTES / 2, MADV_DONTNEED) == 0);
	CHECK(madvise(ram + BYTES / 2, BYTES / 4, MADV_FREE) == 0);
	printf("left: %zu, ", not_zero(ram, BYTES / 2));
	fill(ram, PAGES, 2);
	printf("written wrong: %zu\n", wrong(ram, PAGES, 2));
}

/* Fills memory that was merged by a userfaultfd of its own, all at once. */
static void filled(void)
{
	int file = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	unsigned char *other = mmap(NULL, BYTES, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (uintptr_t)ram, BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_copy copy = { (uintptr_t)ram, (uintptr_t)other, BYTES, 0, 0 };

	if (file < 0 || ioctl(file, UFFDIO_API, &api) != 0) {
		puts("no userfaultfd");
		return;
	}
	fill(other, PAGES, 2);
	for (size_t page = 0; page < PAGES; page += 5)
		ram[page * PAGE] = 1;
	CHECK(ioctl(file, UFFDIO_REGISTER, &range) == 0);
	CHECK(madvise(ram, BYTES, MADV_DONTNEED) == 0);
	if (ioctl(file, UFFDIO_COPY, &copy) != 0)
		printf("%s, ", strerror(errno));
	close(file);
	printf("filled %lld, wrong: %zu\n", (long long)copy.copy, wrong(ram, PAGES, 2));
}

static const struct {
	const char *mode;
	void (*act)(void);
} modes[] = {
	{ "keep-mapped", keep_mapped },	      { "alias", alias }, { "fixed", fixed }, { "part", part },
	{ "userfault", by_userfault },	      { "refused", refused }, { "filled", filled },
};

int main(int count, char **words)
{
	ram = offered(BYTES);
	fill(ram, PAGES, 1);
	await_merged(ram, PAGES);
	for (size_t at = 0; count > 1 && at < sizeof modes / sizeof modes[0]; at++)
		if (strcmp(words[1], modes[at].mode) == 0) {
			modes[at].act();
			return 0;
		}
	return 2;
}
