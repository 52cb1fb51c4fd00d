/* Memory that is mapped from a memfd, which others may be given. */
#include "vmm.h"
#include <linux/udmabuf.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

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

void act_share(void)
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

void act_map_again(void)
{
	unsigned char *again = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, ram_fd, 0);

	CHECK(again != MAP_FAILED);
	expect(again, 0, PAGES);
	write_through(0, PAGES);
	CHECK(memcmp(again, ram, BYTES) == 0);
}

void act_punch(void)
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

/* What linux/iommufd.h has since Linux 6.13. */
struct ioas_map_file {
	uint32_t size, flags, ioas_id;
	int32_t fd;
	uint64_t start, length, iova;
};
#define IOAS_MAP_FILE _IO(';', 0x8f)

/* Whatever the driver says, which need not be there: it would have looked into the file. */
static void expect_in_file(void)
{
	static unsigned char content[BYTES];

	CHECK(pread(ram_fd, content, BYTES, 0) == BYTES);
	expect(content, 0, PAGES);
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

void act_udmabuf(void)
{
	struct udmabuf_create create = { .memfd = ram_fd, .size = BYTES };

	CHECK(ioctl(-1, UDMABUF_CREATE, &create) == -1 && errno == EBADF);
	expect_in_file();
}

void act_udmabufs(void)
{
	struct udmabuf_create_list *list = calloc(1, sizeof *list + 2 * sizeof list->list[0]);

	CHECK(list);
	list->count = 2;
	list->list[0].memfd = open("/dev/null", O_RDONLY);
	list->list[1].memfd = ram_fd;
	CHECK(ioctl(-1, UDMABUF_CREATE_LIST, list) == -1 && errno == EBADF);
	free(list);
	expect_in_file();
}

void act_iommufd_file(void)
{
	struct ioas_map_file map = { .size = sizeof map, .fd = ram_fd, .length = BYTES };

	CHECK(ioctl(-1, IOAS_MAP_FILE, &map) == -1 && errno == EBADF);
	expect_in_file();
}

/* A device behind a virtual IOMMU: the kernel would give it a copy of its own of a merged page. */
void act_device_reads(void)
{
	struct vfio_iommu_type1_dma_map map = { .argsz = sizeof map,
						.flags = VFIO_DMA_MAP_FLAG_READ,
						.vaddr = (uintptr_t)ram,
						.size = BYTES };

	CHECK(ioctl(-1, VFIO_IOMMU_MAP_DMA, &map) == -1 && errno == EBADF);
	expect_no_store();
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

void act_device_writes(void)
{
	struct vfio_iommu_type1_dma_map map = { .argsz = sizeof map,
						.flags = VFIO_DMA_MAP_FLAG_READ |
							 VFIO_DMA_MAP_FLAG_WRITE,
						.vaddr = (uintptr_t)ram,
						.size = BYTES };
	unsigned of_store;

	CHECK(ioctl(-1, VFIO_IOMMU_MAP_DMA, &map) == -1 && errno == EBADF);
	mappings(&of_store);
	CHECK(of_store > 0);
	expect(ram, 0, PAGES);
}
