//! A test on another kernel: the test program itself, run once more in a guest, for what this machine's
//! kernel lacks.
//!
//! A test program that uses it has a test that does nothing unless it [runs there](is_elsewhere), and
//! others that have it run by [`run_test`] on one kernel each.

use std::time::Duration;

use super::{CustomImage, GuestError, Kernel, Kit, Qemu, QemuGuest};

/// Set where the test program runs in a guest.
const VARIABLE: &str = "BINDERY_TEST_ELSEWHERE";

/// How long a guest may take to boot, and the test in it, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether this test program runs in a guest of [`run_test`].
#[must_use]
pub fn is_elsewhere() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Boots `kernel` with two CPUs under TCG, and runs the test `name` of this test program there, alone.
/// Returns what it wrote. A few seconds.
///
/// # Errors
/// [`GuestError::NoKit`] without the kernel, or QEMU; [`GuestError::Command`] if the test failed, if
/// there is none of that name, or if the guest's kernel complained of anything; others as
/// [`QemuGuest`]'s.
pub fn run_test(kernel: Kernel, name: &str) -> Result<String, GuestError> {
    let kit = Kit::locate()?;
    let program = std::env::current_exe().map_err(GuestError::io("the test's own program"))?;
    let directory = tempfile::tempdir().map_err(GuestError::io("a directory for an image"))?;
    let image = CustomImage::new(&kit, kernel, directory.path())?.program(&program)?.write()?;
    // QEMU 7.2 leaves wrong flags after cmpxchg16b under TCG, by which newer kernels allocate memory.
    let qemu = if kernel == Kernel::Backports { Qemu::V10 } else { Qemu::V7 };
    let mut guest = QemuGuest::builder(&kit, &image).qemu(qemu).cpus(2).spawn()?;
    guest.wait_ready(PATIENCE)?;
    let file = program.file_name().unwrap_or_default().to_string_lossy();
    let command = format!("{VARIABLE}=1 {file} --exact {name} --nocapture 2>&1");
    let ran = guest.run_for(&command, PATIENCE)?;
    let complaints = guest.kernel_complaints()?.join("\n");
    if ran.status == 0 && ran.stdout.contains("1 passed") && complaints.is_empty() {
        return Ok(ran.stdout);
    }
    Err(GuestError::Command { command, status: ran.status, output: ran.stdout + &complaints })
}
