//! `cargo xtask test`: set-up, then every test.
//!
//! Ordinary tests of any crate run by themselves. What needs a build of its own (the models under
//! loom) or much more time (the long forms) has a step here.

use anyhow::Result;

use crate::cargo::{Cargo, build_programs, root, target_directory};
use crate::setup;
use crate::steps::Steps;

/// A test that is worth running for longer than everyone's patience.
struct LongForm {
    name: &'static str,
    package: &'static str,
    test: &'static str,
    /// How much more, as the test reads it.
    amount: (&'static str, &'static str),
}

const LONG_FORMS: [LongForm; 13] = [
    LongForm {
        name: "torture, 10^8 operations",
        package: "bindery-space",
        test: "torture",
        amount: ("BINDERY_TORTURE_OPERATIONS", "100000000"),
    },
    LongForm {
        name: "the dirty tree, 10^9 marks",
        package: "bindery-dirty",
        test: "stress",
        amount: ("BINDERY_DIRTY_OPERATIONS", "1000000000"),
    },
    LongForm {
        name: "40,000 lives of logs and MDCs, six crashes each",
        package: "bindery-pool",
        test: "crashes",
        amount: ("BINDERY_POOL_LIVES", "20000"),
    },
    LongForm {
        name: "20,000 lives of pools, with up to four crashes each",
        package: "bindery-pool",
        test: "pools",
        amount: ("BINDERY_POOL_LIVES", "20000"),
    },
    LongForm {
        name: "20,000 lives of pools whose objects go to an archive and back",
        package: "bindery-pool",
        test: "moving",
        amount: ("BINDERY_POOL_LIVES", "20000"),
    },
    LongForm {
        name: "500 processes killed while they write to a pool",
        package: "bindery-pool",
        test: "processes",
        amount: ("BINDERY_POOL_KILLS", "500"),
    },
    LongForm {
        name: "real guests, 200 rounds",
        package: "bindery-cli",
        test: "fire_guests",
        amount: ("BINDERY_GUEST_ROUNDS", "200"),
    },
    LongForm {
        name: "200 daemons killed, 200 connections cut",
        package: "bindery-cli",
        test: "fire_kills",
        amount: ("BINDERY_DAEMON_KILLS", "200"),
    },
    LongForm {
        name: "KVM guests, 50 rounds",
        package: "bindery-cli",
        test: "fire_kvm",
        amount: ("BINDERY_KVM_ROUNDS", "50"),
    },
    LongForm {
        name: "strangers on the socket, five minutes",
        package: "bindery-cli",
        test: "hostile",
        amount: ("BINDERY_HOSTILE_SECONDS", "300"),
    },
    LongForm {
        name: "HTTP while merging at full rate, a minute",
        package: "bindery-cli",
        test: "http_load",
        amount: ("BINDERY_HTTP_SECONDS", "60"),
    },
    LongForm {
        name: "the shim's storm, ten minutes",
        package: "bindery-shim",
        test: "hooks",
        amount: ("STORM_SECONDS", "600"),
    },
    LongForm {
        name: "10^6 operations on memory, with Bindery and without",
        package: "bindery-testkit",
        test: "differential",
        amount: ("BINDERY_DIFFERENTIAL_OPERATIONS", "1000000"),
    },
];

/// How many cases of each property are tried in the long form, as proptest reads it: of 256 those are
/// left over that fail once in ten thousand.
const CASES: (&str, &str) = ("PROPTEST_CASES", "20000");

/// Runs the tests; with `long`, their long forms too.
pub(crate) fn run(long: bool) -> Result<()> {
    let mut steps = Steps::default();
    steps.run("set-up", || setup::run().map(drop));
    steps.run("programs", || build_programs().map(drop));
    let program = target_directory().join("release/bindery");
    steps.run("tests of all crates", || {
        // All that fails is said at once: a run is long.
        Cargo::new(&["test", "--workspace", "--all-features", "--no-fail-fast"])
            .env("BINDERY_PROGRAM", &program)
            .run()
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
