//! Tests say by `skipped!` alone that they cannot run: what they print is captured by the harness.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the lines of a source at which a skip is printed as anything else is. The macro's name and
/// its text may be on two lines.
fn printed_skips(source: &str) -> Vec<usize> {
    let prints = |line: &str| line.contains("print!(") || line.contains("println!(");
    let lines: Vec<&str> = source.lines().collect();
    let at = lines.iter().enumerate().filter(|(at, line)| {
        let before = at.checked_sub(1).map_or("", |before| lines[before]);
        line.contains("\"SKIPPED") && (prints(line) || prints(before))
    });
    at.map(|(at, _)| at + 1).collect()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

#[test]
fn skips_are_announced_by_the_macro() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    ["crates", "examples"].iter().for_each(|part| sources(&root.join(part), &mut found));
    assert!(found.len() > 100, "only {} sources were found", found.len());
    let mut wrong = Vec::new();
    for path in &found {
        for line in printed_skips(&fs::read_to_string(path).unwrap()) {
            wrong.push(format!("{}:{line}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "use bindery_testkit::skipped! in\n{}", wrong.join("\n"));
}

#[test]
fn printed_skips_are_found() {
    assert_eq!(printed_skips("\n    eprintln!(\"SKIPPED: x\");\n"), [2]);
    assert_eq!(printed_skips("println!(\n    \"SKIPPED: {x}\"\n);"), [2]);
    assert_eq!(printed_skips("skipped!(\"{x}\");\nformat!(\"SKIPPED: {why}\")"), [0; 0]);
}
