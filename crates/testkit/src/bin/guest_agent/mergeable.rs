//! Memory for the guest's own KSM: pages of which half are the same in all processes that hold some.

#![expect(unsafe_code, reason = "the standard library has no madvise")]

use std::ffi::{c_int, c_void};
use std::io;
use std::time::Duration;

use crate::content::{Page, PageState};
use crate::options::Options;

/// `MADV_MERGEABLE` of Linux (asm-generic/mman-common.h).
const MADV_MERGEABLE: c_int = 12;

unsafe extern "C" {
    fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
}

/// Holds `--pages` pages until it is ended, and offers them unless told not to (`--offer 0`: somebody
/// else does). Says so in a line once they are there.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let seed: u64 = options.get("seed", 1)?;
    let mut pages = vec![Page::zeroed(); options.get("pages", 1000_usize)?];
    for (number, page) in pages.iter_mut().enumerate() {
        let version = if number % 2 == 0 { 1 } else { 3 };
        PageState { version, stamp: 0 }.fill(seed, number as u64, &mut page.0);
    }
    if options.get("offer", 1_u32)? != 0 {
        offer(&mut pages).map_err(|error| format!("madvise(MADV_MERGEABLE): {error}"))?;
    }
    println!("{} pages", pages.len());
    loop {
        std::thread::sleep(Duration::from_secs(3600));
        // Read now and then, so that they are not taken for garbage.
        std::hint::black_box(&pages);
    }
}

fn offer(pages: &mut [Page]) -> io::Result<()> {
    // SAFETY: the range is this slice, whole pages on page boundaries, and nobody else's; the advice
    // changes no content of it.
    let result = unsafe { madvise(pages.as_mut_ptr().cast(), size_of_val(pages), MADV_MERGEABLE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
