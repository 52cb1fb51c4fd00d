//! The product carries nothing that only its benchmarks and tests need.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use bindery_testkit::bindery::Bindery;
use bindery_testkit::skipped;
use cargo_metadata::{DependencyKind, MetadataCommand, PackageId};

/// What the product is made of.
const PRODUCT: [&str; 2] = ["bindery-cli", "bindery-shim"];

/// What must not be linked into it: benchmarks, their contenders, and the tests' harness.
const BESIDE: [&str; 16] = [
    "bindery-bench",
    "bindery-example-tables",
    "bindery-testkit",
    "bindery-ycsb",
    "blake3",
    "congee",
    "dashmap",
    "fuser",
    "hi_sparse_bitset",
    "highway",
    "papaya",
    "proptest",
    "roaring",
    "scc",
    "twox-hash",
    "vm-memory",
];

/// Greatest length of the program, in bytes. A quarter of it is what it takes to speak to S3: object_store,
/// reqwest, rustls, HTTP/2 and XML. Checkpoints take 2.5 MiB, with zstd and AES.
const PROGRAM_BYTES_MAX: u64 = 18 << 20;

/// The longest that the library may be, in bytes. Half of it is libaegis, of which the digest uses one of six
/// ciphers, and none of their encryption: its tables of functions name them all.
const SHIM_BYTES_MAX: u64 = 15 << 17;

/// Names of all packages that `root` links, itself included.
fn linked(root: &str) -> HashSet<String> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let metadata =
        MetadataCommand::new().manifest_path(manifest).exec().expect("cargo metadata runs");
    let names: HashMap<&PackageId, &str> =
        metadata.packages.iter().map(|package| (&package.id, &**package.name)).collect();
    let nodes = &metadata.resolve.as_ref().expect("dependencies are resolved").nodes;
    let uses: HashMap<&PackageId, Vec<&PackageId>> = nodes
        .iter()
        .map(|node| {
            let normal = node.deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
            });
            (&node.id, normal.map(|dependency| &dependency.pkg).collect())
        })
        .collect();
    let root = names.iter().find(|(_, name)| **name == root).expect("the package exists").0;
    let (mut found, mut ahead) = (HashSet::from([*root]), vec![*root]);
    while let Some(package) = ahead.pop() {
        ahead.extend(uses[package].iter().filter(|used| found.insert(**used)).copied());
    }
    found.into_iter().map(|package| names[package].to_owned()).collect()
}

#[test]
fn the_product_links_no_contender() {
    for root in PRODUCT {
        let linked = linked(root);
        let wrong: Vec<_> = BESIDE.iter().filter(|name| linked.contains(**name)).collect();
        assert!(wrong.is_empty(), "{root} links {wrong:?}");
        assert!(linked.contains("bindery-sys"), "{root} links bindery-sys");
    }
    assert!(linked("bindery-bench").contains("papaya"), "contenders are called as they are here");
}

/// The daemon's side knows the protocol, and not the engine inside a VMM.
#[test]
fn the_daemon_links_no_userfaultfd_engine() {
    for root in ["bindery-merge", "bindery-guest", "bindery-host", "bindery-cli"] {
        assert!(!linked(root).contains("bindery-space"), "{root} links bindery-space");
    }
    assert!(linked("bindery-shim").contains("bindery-space"), "the shim does");
}

#[test]
fn the_programs_are_small() {
    let bindery = match Bindery::locate() {
        Ok(bindery) => bindery,
        Err(error) => return skipped!("the programs' sizes: {error}"),
    };
    let program = bindery.program();
    let is_at_most = |path: &Path, most: u64| {
        let bytes = std::fs::metadata(path).expect("the file is there").len();
        assert!(bytes <= most, "{} has {bytes} bytes, more than {most}", path.display());
    };
    is_at_most(program, PROGRAM_BYTES_MAX);
    is_at_most(&program.with_file_name("libbindery_shim.so"), SHIM_BYTES_MAX);
}
