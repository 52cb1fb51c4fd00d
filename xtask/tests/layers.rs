//! Dependencies run downwards only, and `unsafe` stays in the rooms that are for it.
//!
//! The rules are pure functions over what `cargo metadata` says, so that each is also shown to
//! catch a violation made up for it. A crate without a place in [`LAYERS`] or [`BESIDE`] is a
//! violation too: whoever adds a room decides where it stands.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, TargetKind};

/// The stack, top to bottom. A crate may depend on crates of lower layers; crates of one layer are
/// siblings, and none imports another.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["shim"],
    &["host"],
    &["merge", "checkpoint", "migration", "ksm"],
    &["transfer"],
    &["guest", "vmm"],
    &["space"],
    &["wire"],
    &["pool", "advisor", "dirty", "index", "page"],
    &["demand"],
    &["sys"],
    &["units"],
];

/// The crates beside the stack, and what each may depend on.
const BESIDE: &[(&str, Allowed)] = &[
    ("testkit", Allowed::Only(&["units", "sys", "page", "space", "guest"])),
    ("ycsb", Allowed::Only(&[])),
    ("example-tables", Allowed::Only(&["units", "sys", "pool"])),
    ("bench", Allowed::AllBut(&["cli", "xtask", "fuzz"])),
    ("fuzz", Allowed::AllBut(&["cli", "xtask", "bench"])),
    ("xtask", Allowed::AllBut(&["cli"])),
];

/// What the layers alone would allow, and must not be: the shim lives inside a VMM that trusts it,
/// and shares nothing with the daemon but what passes between them.
const FORBIDDEN: &[(&str, &[&str])] = &[(
    "shim",
    &[
        "host",
        "merge",
        "checkpoint",
        "migration",
        "transfer",
        "guest",
        "vmm",
        "index",
        "pool",
        "advisor",
    ],
)];

/// Where the document lists the crates that may hold `unsafe`, and what follows the list.
const UNSAFE_LIST: (&str, &str) = ("`unsafe` is in", "the others forbid it");

enum Allowed {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

/// One crate of the workspace depends on another. Names are without `bindery-`.
#[derive(Clone, Copy, Debug)]
struct Edge<'a> {
    from: &'a str,
    to: &'a str,
    for_tests: bool,
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

fn beside(name: &str) -> Option<&'static Allowed> {
    BESIDE.iter().find(|(known, _)| *known == name).map(|(_, allowed)| allowed)
}

/// Why `name` has no place in the stack, if it has none.
fn misplaced(name: &str) -> Option<String> {
    let is_placed = layer_of(name).is_some() || beside(name).is_some();
    (!is_placed).then(|| format!("{name} has no place in LAYERS or BESIDE"))
}

/// Why `edge` must not be, if it must not.
fn violation(edge: Edge<'_>) -> Option<String> {
    let Edge { from, to, for_tests } = edge;
    if let Some(allowed) = beside(from) {
        let is_allowed = match allowed {
            Allowed::Only(crates) => crates.contains(&to),
            Allowed::AllBut(crates) => !crates.contains(&to),
        };
        return (!is_allowed).then(|| format!("{from} may not depend on {to}"));
    }
    match to {
        "testkit" if for_tests => return None,
        "testkit" => return Some(format!("{from} may depend on testkit for its tests alone")),
        _ => {}
    }
    // Its tests may speak to it as the daemon would.
    let is_forbidden =
        FORBIDDEN.iter().any(|(crate_name, others)| *crate_name == from && others.contains(&to));
    if is_forbidden && !for_tests {
        return Some(format!("{from} may not depend on {to}"));
    }
    let (Some(above), Some(below)) = (layer_of(from), layer_of(to)) else {
        return Some(format!("{from} depends on {to}, and one of them is not in the stack"));
    };
    match above.cmp(&below) {
        std::cmp::Ordering::Less => None,
        std::cmp::Ordering::Equal => Some(format!("{from} depends on its sibling {to}")),
        std::cmp::Ordering::Greater => Some(format!("{from} depends upwards on {to}")),
    }
}

/// Whether the source of a crate's root forbids unsafe code.
fn forbids_unsafe(source: &str) -> bool {
    source.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]")
}

/// Returns the crates that may hold `unsafe` by docs/architecture.md, the one list of them.
fn may_be_unsafe(document: &str) -> Vec<String> {
    let (begin, end) = UNSAFE_LIST;
    // Lines end anywhere.
    let document = document.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, list) = document.split_once(begin).expect("the document has the list");
    let (list, _) = list.split_once(end).expect("the list ends");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn architecture() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/architecture.md");
    std::fs::read_to_string(path).expect("the document is there")
}

fn workspace() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata runs")
}

fn room(package: &str) -> &str {
    package.strip_prefix("bindery-").unwrap_or(package)
}

#[test]
fn dependencies_run_downwards_only() {
    let workspace = workspace();
    let rooms: Vec<_> = workspace.packages.iter().map(|package| room(&package.name)).collect();
    let mut wrong: Vec<String> = rooms.iter().filter_map(|name| misplaced(name)).collect();
    let mut edges = 0;
    for package in &workspace.packages {
        for dependency in &package.dependencies {
            let to = room(&dependency.name);
            if dependency.path.is_none() || !rooms.contains(&to) {
                continue;
            }
            edges += 1;
            let for_tests = dependency.kind == DependencyKind::Development;
            wrong.extend(violation(Edge { from: room(&package.name), to, for_tests }));
        }
    }
    assert!(edges > 10, "only {edges} dependencies within the workspace were seen");
    assert!(wrong.is_empty(), "the rooms are out of order:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let shipped = [TargetKind::Lib, TargetKind::Bin, TargetKind::CDyLib, TargetKind::CustomBuild];
    let (mut roots, mut wrong) = (0, Vec::new());
    let mut may_be_unsafe = may_be_unsafe(&architecture());
    for package in &workspace().packages {
        let is_shipped = |kind: &TargetKind| shipped.contains(kind);
        let targets = package.targets.iter().filter(|target| target.kind.iter().any(is_shipped));
        let lacking: Vec<_> = targets
            .inspect(|_| roots += 1)
            .filter(|target| {
                let source = std::fs::read_to_string(&target.src_path).expect("cargo lists it");
                !forbids_unsafe(&source)
            })
            .map(|target| format!("{} lacks #![forbid(unsafe_code)]", target.src_path))
            .collect();
        match may_be_unsafe.iter().position(|name| *name == room(&package.name)) {
            Some(at) if !lacking.is_empty() => _ = may_be_unsafe.swap_remove(at),
            Some(_) => {}
            None => wrong.extend(lacking),
        }
    }
    assert!(roots > 3, "only {roots} crate roots were seen");
    assert!(wrong.is_empty(), "unsafe code is not forbidden:\n{}", wrong.join("\n"));
    assert!(may_be_unsafe.is_empty(), "listed, and without unsafe code: {may_be_unsafe:?}");
}

fn normal<'a>(from: &'a str, to: &'a str) -> Option<String> {
    violation(Edge { from, to, for_tests: false })
}

fn test_only<'a>(from: &'a str, to: &'a str) -> Option<String> {
    violation(Edge { from, to, for_tests: true })
}

#[test]
fn what_runs_downwards_is_allowed() {
    for (from, to) in [
        ("cli", "host"),
        ("cli", "shim"),
        ("host", "merge"),
        ("merge", "index"),
        ("merge", "units"),
        ("shim", "space"),
        ("index", "sys"),
        ("pool", "demand"),
        ("bench", "merge"),
        ("bench", "testkit"),
        ("testkit", "guest"),
        ("xtask", "testkit"),
    ] {
        assert_eq!(normal(from, to), None);
    }
    assert_eq!(test_only("sys", "testkit"), None);
}

#[test]
fn made_up_violations_are_caught() {
    let upwards = [("units", "sys"), ("sys", "page"), ("space", "guest"), ("merge", "host")];
    for (from, to) in upwards {
        let found = normal(from, to).unwrap_or_default();
        assert!(found.contains("upwards"), "{from} to {to}: {found:?}");
        assert_eq!(test_only(from, to), Some(found), "tests are no way around");
    }
    for (from, to) in
        [("page", "index"), ("index", "page"), ("merge", "migration"), ("vmm", "guest")]
    {
        let found = normal(from, to).unwrap_or_default();
        assert!(found.contains("sibling"), "{from} to {to}: {found:?}");
    }
    let forbidden = [
        ("shim", "host"),
        ("shim", "merge"),
        ("shim", "guest"),
        ("shim", "index"),
        ("testkit", "merge"),
        ("bench", "cli"),
        ("cli", "bench"),
        ("host", "bench"),
        ("host", "xtask"),
        ("host", "shim"),
        ("host", "cli"),
        ("space", "testkit"),
        ("space", "unheard-of"),
    ];
    for (from, to) in forbidden {
        assert!(normal(from, to).is_some(), "{from} to {to} passes");
    }
}

#[test]
fn a_crate_without_a_place_is_caught() {
    assert!(misplaced("unheard-of").is_some());
    assert_eq!(misplaced("page"), None);
    assert_eq!(misplaced("testkit"), None);
}

#[test]
fn the_list_of_unsafe_crates_is_read_out_of_the_document() {
    let document =
        "Before `x`. `unsafe` is\nin `sys`, `page`\nand `shim`; the\nothers forbid it. `y`";
    assert_eq!(may_be_unsafe(document), ["sys", "page", "shim"]);
}

#[test]
fn only_the_attribute_itself_forbids() {
    assert!(forbids_unsafe("//! A crate.\n#![forbid(unsafe_code)]\n"));
    assert!(!forbids_unsafe("//! `#![forbid(unsafe_code)]` is not here.\n"));
    assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n#![deny(unsafe_code)]\n"));
}
