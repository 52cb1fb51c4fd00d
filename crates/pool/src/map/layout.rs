//! Layout of the objects of a map in its range: each in a bucket, all buckets alike.

use bindery_units::PAGE_BYTES;

/// Buckets of one length, a power of two, so that a page's object is found by a shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    objects: usize,
    bucket_pages_log2: u32,
}

/// A map beyond this is not made: an eighth of what a process can address.
const RANGE_BYTES_MAX: u64 = 1 << 44;

impl Layout {
    /// Returns the layout for so many objects, none longer than `longest_bytes`. `None` if that is too much.
    pub(super) fn new(objects: usize, longest_bytes: u64) -> Option<Self> {
        let bucket_bytes = longest_bytes.max(PAGE_BYTES as u64).checked_next_power_of_two()?;
        let bytes = bucket_bytes.checked_mul(objects as u64)?;
        let bucket_pages_log2 = (bucket_bytes / PAGE_BYTES as u64).ilog2();
        (bytes <= RANGE_BYTES_MAX).then_some(Self { objects, bucket_pages_log2 })
    }

    /// Returns the length of all buckets together, in bytes.
    pub(super) const fn bytes(self) -> usize {
        (self.objects << self.bucket_pages_log2) * PAGE_BYTES
    }

    /// Returns the start of an object's bucket, in bytes.
    pub(super) const fn base_bytes(self, object: usize) -> usize {
        self.first_page(object) * PAGE_BYTES
    }

    /// The page at which an object's bucket begins.
    pub(super) const fn first_page(self, object: usize) -> usize {
        object << self.bucket_pages_log2
    }

    /// Returns the object of a page, and the page's number in it.
    pub(super) const fn find(self, page: usize) -> (usize, usize) {
        let object = page >> self.bucket_pages_log2;
        (object, page - (object << self.bucket_pages_log2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_are_found_where_they_were_put(
            objects in 1usize..2000,
            longest_bytes in 0u64..1 << 32,
            which in any::<prop::sample::Index>(),
            page in any::<prop::sample::Index>(),
        ) {
            let layout = Layout::new(objects, longest_bytes).unwrap();
            let object = which.index(objects);
            let pages = longest_bytes.div_ceil(PAGE_BYTES as u64).max(1) as usize;
            let page = page.index(pages);
            prop_assert_eq!(layout.find(layout.first_page(object) + page), (object, page));
            prop_assert!(layout.base_bytes(object) + pages * PAGE_BYTES <= layout.bytes());
        }
    }

    #[test]
    fn what_no_process_can_map_is_refused() {
        assert_eq!(Layout::new(2, u64::MAX), None);
        assert_eq!(Layout::new(usize::MAX, 1 << 30), None);
        assert_eq!(Layout::new(1 << 20, 1 << 30), None);
        assert_eq!(Layout::new(3, 0).unwrap().bytes(), 3 * PAGE_BYTES);
    }
}
