//! Modules of large crates import downwards only: each stands on a floor, and uses those below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A crate's floors, top to bottom. A module may import modules of lower floors; those of one floor
/// are siblings, and none imports another.
type Floors = &'static [&'static [&'static str]];

const POOL: Floors = &[
    &["pool", "reaper"],
    &["write"],
    &["session"],
    &["map", "mblock"],
    &["media"],
    &["catalogue"],
    &["mdc"],
    &["archive", "log"],
    &["object"],
    &["device", "format"],
    &["extent"],
    &["block", "crc", "free_space", "id", "name", "pace", "process"],
];

const MERGE: Floors = &[
    &["engine"],
    &["period"],
    &["observe"],
    &["look"],
    &["losses", "resync", "scan", "unmerge"],
    &["appraise"],
    &[
        "admit", "agenda", "apply", "arrivals", "compact", "examine", "fill", "rehome", "spread",
        "visit",
    ],
    &["room"],
    &["domain"],
    &["grant", "guest", "pace"],
    &["classes", "slots", "status", "store", "tally", "workers"],
    &[
        "between",
        "extents",
        "gains",
        "headroom",
        "home",
        "index_entry",
        "limit",
        "links",
        "lock",
        "meter",
    ],
    &[
        "patience",
        "phases",
        "plan",
        "pressure",
        "queue",
        "retry_pause",
        "rhythm",
        "rows",
        "runs",
        "settings",
        "stable",
        "stayed",
    ],
    &["huge", "nodes", "stop", "troubles"],
];

const CHECKPOINT: Floors = &[
    &["remote"],
    &["stream"],
    &["store"],
    &["reader"],
    &["domain_keys"],
    &["catalogue"],
    &["known", "manifest", "pack", "root", "touched"],
    &["object"],
    &["error"],
    &["name", "page_digest", "seal"],
    &["fields"],
    &["checksum", "format_error"],
];

const MIGRATION: Floors =
    &[&["connect"], &["encode", "receive"], &["fit", "hand_over"], &["arguments", "format"]];

/// Returns all code of a module, without its tests and comments.
fn code(module: &Path) -> String {
    if module.is_dir() {
        let entries = fs::read_dir(module).expect("it is a directory");
        let entries = entries.map(|entry| entry.expect("it can be listed").path());
        return entries.map(|entry| code(&entry)).collect::<Vec<_>>().join("\n");
    }
    if module.to_string_lossy().ends_with("tests.rs") {
        return String::new();
    }
    let source = fs::read_to_string(module).expect("it is a source file");
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// Returns the first name of a path, or of each path in braces: `a` and `b` of `{a::{c, d}, b}`.
fn first_names(path: &str) -> Vec<&str> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let Some(inner) = path.strip_prefix('{') else {
        return path.split(|letter| !is_name(letter)).take(1).collect();
    };
    let (mut depth, mut names, mut is_first) = (1, Vec::new(), true);
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' => is_first |= depth == 1,
            letter if is_first && is_name(letter) => {
                names.extend(first_names(&inner[at..]));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

/// Returns the names behind every `start` in code, such as `crate::`.
fn names_behind<'a>(code: &'a str, start: &str) -> BTreeSet<&'a str> {
    let ends = code.match_indices(start).map(|(at, _)| &code[at + start.len()..]);
    ends.flat_map(first_names).collect()
}

/// Returns the module that each name of the crate's root is from.
fn root_names(root: &str) -> BTreeMap<&str, &str> {
    let statements = root.split("pub use ").skip(1).filter_map(|text| text.split_once("::"));
    let names = statements
        .flat_map(|(module, path)| first_names(path).into_iter().map(move |name| (name, module)));
    names.collect()
}

fn floor_of(floors: Floors, module: &str) -> usize {
    let floor = floors.iter().position(|floor| floor.contains(&module));
    floor.unwrap_or_else(|| panic!("{module} has no place in its crate's floors"))
}

/// Returns the modules of a crate, each with its place.
fn modules(source: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(source).expect("a crate has sources");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    let modules = paths.filter_map(|path| {
        let name = path.file_stem()?.to_str()?.to_owned();
        let is_code = !["lib", "tests"].contains(&&*name) && !name.ends_with("_tests");
        is_code.then_some((name, path))
    });
    modules.collect()
}

/// Checks that the modules of `package` import downwards only, and that so many imports at least are seen.
fn check(package: &str, floors: Floors, least_imports: usize) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(package).join("src");
    let root = code(&source.join("lib.rs"));
    let root_names = root_names(&root);
    let modules = modules(&source);
    let (mut wrong, mut imports) = (Vec::new(), 0);
    for (module, path) in &modules {
        for name in names_behind(&code(path), "crate::") {
            let other = root_names.get(name).copied().unwrap_or(name);
            // What the root defines itself is beneath all.
            if other == module || !modules.contains_key(other) {
                continue;
            }
            imports += 1;
            if floor_of(floors, other) <= floor_of(floors, module) {
                wrong.push(format!("{module} imports {name} of {other}"));
            }
        }
    }
    assert!(imports >= least_imports, "only {imports} imports were seen");
    assert!(wrong.is_empty(), "modules of {package} are out of order:\n{}", wrong.join("\n"));
}

#[test]
fn modules_of_the_pool_import_downwards_only() {
    check("pool", POOL, 50);
}

#[test]
fn modules_of_merge_import_downwards_only() {
    check("merge", MERGE, 50);
}

#[test]
fn modules_of_checkpoint_import_downwards_only() {
    check("checkpoint", CHECKPOINT, 50);
}

#[test]
fn modules_of_migration_import_downwards_only() {
    check("migration", MIGRATION, 5);
}

#[test]
fn imports_are_found_in_nested_braces() {
    let code = "use crate::{a::{b, c}, d};\nuse crate::e::f;\nlet g = crate::h();";
    assert_eq!(names_behind(code, "crate::"), BTreeSet::from(["a", "d", "e", "h"]));
    let root = root_names("pub use a::B;\npub use c::{\n    D, e,\n};\n");
    assert_eq!(root, BTreeMap::from([("B", "a"), ("D", "c"), ("e", "c")]));
}
