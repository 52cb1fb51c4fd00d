//! The libraries can be packaged for crates.io, each with what a stranger needs to know of it.

use std::path::Path;
use std::process::Command;

use cargo_metadata::MetadataCommand;

/// The libraries for others, and those that they are built on.
const LIBRARIES: [&str; 6] = [
    "bindery-demand",
    "bindery-dirty",
    "bindery-index",
    "bindery-page",
    "bindery-pool",
    "bindery-space",
];
const BENEATH: [&str; 3] = ["bindery-sys", "bindery-units", "bindery-wire"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Everything is packaged but not built once more: the tests have built it.
#[test]
fn the_libraries_can_be_packaged() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO"));
    command.args(["package", "--no-verify", "--allow-dirty", "--offline", "--target-dir"]);
    command.arg(directory.path()).current_dir(root());
    for name in LIBRARIES.iter().chain(&BENEATH) {
        command.args(["--package", name]);
    }
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in LIBRARIES.iter().chain(&BENEATH) {
        let package = format!("package/{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        assert!(directory.path().join(&package).exists(), "{package} was not made");
    }
}

#[test]
fn the_libraries_say_what_they_are() {
    let mut command = MetadataCommand::new();
    let metadata = command.manifest_path(root().join("Cargo.toml")).no_deps().exec();
    let metadata = metadata.expect("cargo metadata runs");
    for name in LIBRARIES {
        let package = metadata.packages.iter().find(|package| *package.name == *name);
        let package = package.expect("the library is in the workspace");
        let readme = package.readme().expect("a README is named");
        let text = std::fs::read_to_string(readme).expect("the README is there");
        assert!(text.contains("```rust") && text.contains("## Versions"), "{name}");
        assert!(!package.keywords.is_empty() && !package.categories.is_empty(), "{name}");
        assert!(package.metadata["docs"]["rs"]["all-features"] == true, "{name}");
    }
}
