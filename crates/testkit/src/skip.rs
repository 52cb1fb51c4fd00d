//! Says loudly that a test could not run here, so that nobody takes its silence for a pass.

/// Prints `SKIPPED: …` to standard error, past the test harness's capture.
#[doc(hidden)]
pub fn announce(why: &std::fmt::Arguments<'_>) {
    use std::io::Write;
    let line = format!("SKIPPED: {why}\n");
    // The harness captures what `eprint!` writes, not what goes to the descriptor.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Announces that a test does not run, with a reason as in `format!`.
#[macro_export]
macro_rules! skipped {
    ($($reason:tt)*) => {
        $crate::skip::announce(&format_args!($($reason)*))
    };
}
