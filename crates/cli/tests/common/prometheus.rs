//! Prometheus' text format, version 0.0.4, read more strictly than Prometheus does.
//!
//! Each family is its help, its type and then all of its samples; names, labels and escapes are as the
//! format has them; no sample comes twice; what only grows is called so.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

use std::collections::{BTreeMap, BTreeSet};

/// Metrics of guests with checkpoints, or that are filled from one, which other daemons do not have.
pub(crate) const KEPT_FAMILIES: [&str; 8] = [
    "bindery_guest_checkpoints",
    "bindery_guest_checkpoint_own_bytes",
    "bindery_guest_checkpoint_shared_bytes",
    "bindery_guest_checkpoint_failures_total",
    "bindery_guest_restores_total",
    "bindery_guest_checkpoint_timestamp_seconds",
    "bindery_guest_checkpoint_pause_seconds",
    "bindery_guest_missing_pages",
];

/// Labels of a sample, by name.
pub(crate) type Labels = BTreeMap<String, String>;

/// A metric.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: BTreeMap<Labels, f64>,
}

/// All metrics, by name.
///
/// # Panics
/// If anything in the text is not as it should be.
pub(crate) fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut helped, mut current) = (None, None);
    assert!(text.ends_with('\n'), "the last line has an end");
    for line in text.split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("help has a name and a text");
            assert!(help.len() > 5 && help.ends_with('.'), "{line}");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type has a name and a kind");
            assert_eq!(helped.take().as_deref(), Some(name), "help comes before the type");
            assert!(is_name(name) && name.starts_with("bindery_"), "{name}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let family = Family { kind: kind.to_owned(), samples: BTreeMap::new() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} comes twice");
            current = Some(name.to_owned());
        } else {
            let (name, labels, value) = sample(line);
            assert_eq!(current.as_deref(), Some(name), "a sample follows its type: {line}");
            let family = families.get_mut(name).unwrap();
            assert!(value.is_finite() && (family.kind == "gauge" || value >= 0.0), "{line}");
            assert!(family.samples.insert(labels, value).is_none(), "{line} comes twice");
        }
    }
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name} has no sample");
        let names = |labels: &Labels| labels.keys().cloned().collect::<BTreeSet<_>>();
        let all: BTreeSet<_> = family.samples.keys().map(names).collect();
        assert_eq!(all.len(), 1, "all samples of {name} have the same labels");
    }
    families
}

fn is_name(text: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_start) && text.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

/// `name{label="value",…} number`.
fn sample(line: &str) -> (&str, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inside.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label) && !label.starts_with("__"), "{line}");
            let (value, after) = quoted(after).unwrap_or_else(|| panic!("{line}"));
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            match (after.strip_prefix(','), after.strip_prefix('}')) {
                (Some(more), _) => inside = more,
                (None, Some(after)) => {
                    rest = after;
                    break;
                }
                (None, None) => panic!("{line}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name, labels, value.parse().unwrap_or_else(|error| panic!("{error}: {line}")))
}

/// A value up to its closing quote, without its escapes, and what comes after.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        value.push(match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            },
            c => c,
        });
    }
    None
}
