//! Builds the program that puts other stores under the workload of `bindery-bench pool ycsb`.
//!
//! Not a part of the workspace: RocksDB is a quarter of a million lines of C++.

use anyhow::Result;

use crate::cargo::{Cargo, root, target_directory};
use crate::setup;

/// Builds it, and says where it lies.
pub(crate) fn build() -> Result<()> {
    let libclang = setup::libclang()?;
    // Unpacked, it does not find its headers by itself.
    let headers = libclang.join("clang/14.0.6");
    let manifest = root().join("rivals/Cargo.toml").display().to_string();
    Cargo::new(&["build", "--release", "--locked", "--manifest-path", &manifest])
        .env("LIBCLANG_PATH", &libclang)
        .env("BINDGEN_EXTRA_CLANG_ARGS", format!("-resource-dir {}", headers.display()))
        .env("CARGO_TARGET_DIR", target_directory().join("rivals"))
        .run()?;
    println!("{}", target_directory().join("rivals/release/bindery-rivals").display());
    Ok(())
}
