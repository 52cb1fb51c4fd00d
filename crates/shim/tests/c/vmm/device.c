/* A device behind a virtual IOMMU, which the memory is given to. */
#include "vmm.h"
#include <linux/vfio.h>
#include <sys/ioctl.h>

/* The kernel would give it a copy of its own of a merged page. */
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
