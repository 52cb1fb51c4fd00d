//! `cargo xtask test`: set-up, then every test.
//!
//! Ordinary tests of any crate run by themselves. What needs a build of its own (the models under
//! loom) or much more time (the long forms) has a step here.

mod binaries;
mod long_forms;
mod turns;

use anyhow::Result;

use crate::cargo::{Cargo, build_programs, root, target_directory};
use crate::setup;
use crate::steps::Steps;
use long_forms::LONG_FORMS;

/// How many cases of each property are tried in the long form, as proptest reads it: of 256 those are
/// left over that fail once in ten thousand.
const CASES: (&str, &str) = ("PROPTEST_CASES", "20000");

/// Runs the tests; with `long`, their long forms too.
pub(crate) fn run(long: bool) -> Result<()> {
    let mut steps = Steps::default();
    steps.run("set-up", || setup::run().map(drop));
    steps.run("programs", || build_programs().map(drop));
    let program = target_directory().join("release/bindery");
    let mut tests = Vec::new();
    steps.run("building tests", || {
        tests = binaries::build()?;
        Ok(())
    });
    // All that fails is said at once: a run is long.
    steps.run("tests", || turns::run(&tests, &program));
    steps.run("examples in documentation", || {
        Cargo::new(&["test", "--workspace", "--all-features", "--no-fail-fast", "--doc"]).run()
    });
    steps.run("loom models", || {
        let models = packages_with_models();
        let packages = models.iter().flat_map(|package| ["--package", package]);
        let arguments: Vec<&str> = ["test", "--test", "loom"].into_iter().chain(packages).collect();
        Cargo::new(&arguments)
            .env("RUSTFLAGS", "--cfg loom")
            // Another RUSTFLAGS in the same directory would rebuild everything, twice.
            .env("CARGO_TARGET_DIR", target_directory().join("loom"))
            .run()
    });
    for form in LONG_FORMS.iter().filter(|_| long) {
        steps.run(format!("long form: {}", form.name), || {
            let (package, test) = (form.package, form.test);
            Cargo::new(&["test", "--release", "--package", package, "--test", test])
                .env("BINDERY_PROGRAM", &program)
                .env(form.amount.0, form.amount.1)
                .run()
        });
    }
    if long {
        steps.run(format!("long form: {} cases of every property", CASES.1), || {
            Cargo::new(&["test", "--release", "--workspace", "--all-features"])
                .env("BINDERY_PROGRAM", &program)
                .env(CASES.0, CASES.1)
                .run()
        });
    }
    steps.finish()
}

/// The packages that have a `tests/loom.rs`.
fn packages_with_models() -> Vec<String> {
    let Ok(crates) = std::fs::read_dir(root().join("crates")) else { return Vec::new() };
    let mut packages: Vec<String> = crates
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("tests/loom.rs").exists())
        .map(|entry| format!("bindery-{}", entry.file_name().to_string_lossy()))
        .collect();
    packages.sort();
    packages
}
