//! What is refused is told with what it was and what would have been right, in numbers, and has changed
//! nothing. What kernels and guests do is refused in the tests of the sources.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use bindery_dirty::{Feed, Joining, MOST_READERS, OutOfRange, Tree, bitmap, ring};
use bindery_units::{PageIndex, PageRange};

const PAGES: u64 = 100;

fn said<T>(refused: Result<T, impl Display>) -> String {
    refused.map(|_| "nothing was refused").map_err(|error| error.to_string()).unwrap_err()
}

#[test]
fn a_page_out_of_range_is_told_by_every_way_to_mark() {
    let tree = Arc::new(Tree::new(PAGES).unwrap());
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    let reader = feed.join(Joining::Clean).unwrap();
    let (mut marker, _) = ring(&tree, 8);
    let (mut bitmap_marker, _bitmap_reader) = bitmap(PAGES).unwrap();
    let beyond = [PageIndex(100)];
    let refused: [Result<(), OutOfRange>; 11] = [
        tree.mark(100_u64),
        tree.mark_range(90_u64, 11),
        tree.mark_words(1, &[1 << 36]),
        tree.mark_pages(0, &beyond),
        feed.mark(100_u64),
        feed.mark_range(90_u64, 11),
        feed.mark_words(1, &[1 << 36]),
        feed.mark_pages(0, &beyond),
        marker.push(beyond[0]),
        bitmap_marker.mark(100_u64),
        bitmap_marker.mark_range(90_u64, 11),
    ];
    for (way, refused) in refused.into_iter().enumerate() {
        let expected = "page 100 is out of range: the dirty set has 100 pages";
        assert_eq!(said(refused), expected, "way {way}");
    }
    assert!(tree.is_empty() && reader.is_empty());
    let far = "page 18446744073709551615 is out of range: the dirty set has 100 pages";
    assert_eq!(said(tree.mark(u64::MAX)), far);
    assert_eq!(said(feed.mark_range(u64::MAX, 1)), far);
}

#[test]
fn a_harvest_out_of_range_is_told_and_takes_nothing() {
    let tree = Tree::new(PAGES).unwrap();
    tree.mark(99_u64).unwrap();
    let mut pages = Vec::new();
    let beyond = PageRange::new(PageIndex(50), 51);
    let refused = said(tree.harvest_into(beyond, &mut pages));
    assert_eq!(refused, "page 100 is out of range: the dirty set has 100 pages");
    assert!(pages.is_empty() && tree.is_marked(99_u64));
}

#[test]
fn a_bitmap_of_the_wrong_length_is_told() {
    let tree = Tree::new(PAGES).unwrap();
    tree.mark(7_u64).unwrap();
    for words in [0, 1, 3, 1000] {
        let expected = format!("a bitmap of 100 pages has 2 words of 64 bits, not {words}");
        assert_eq!(said(tree.import(&vec![u64::MAX; words])), expected);
        let mut bitmap = vec![0; words];
        assert_eq!(said(tree.export(&mut bitmap)), expected);
        assert!(bitmap.iter().all(|word| *word == 0));
    }
    // Of the right length, with a page in it that the tree has not.
    let stray = "page 127 is out of range: the dirty set has 100 pages";
    assert_eq!(said(tree.import(&[1, 1 << 63])), stray);
    assert_eq!(tree.iter().collect::<Vec<_>>(), [7]);
}

#[test]
fn a_tree_of_another_size_is_told() {
    let (tree, other) = (Tree::new(PAGES).unwrap(), Tree::new(101).unwrap());
    other.mark(1_u64).unwrap();
    let expected = "a dirty tree of 100 pages goes with one of as many, not of 101";
    assert_eq!(said(tree.unite(&other)), expected);
    assert_eq!(said(tree.subtract(&other)), expected);
    assert!(tree.is_empty());
    for pages in [0, (1 << 40) + 1, u64::MAX] {
        let expected = format!("a dirty set has from 1 to 2^40 pages, not {pages}");
        assert_eq!(said(Tree::new(pages)), expected);
        assert_eq!(said(Feed::new(pages)), expected);
    }
}

#[test]
fn a_feed_without_a_seat_is_told() {
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    let readers: Vec<_> = (0..MOST_READERS).map(|_| feed.join(Joining::Clean).unwrap()).collect();
    let expected = "a feed has at most 16 readers, and has them";
    assert_eq!(said(feed.join(Joining::Clean)), expected);
    assert_eq!(feed.readers(), readers.len());
}

/// Set in a process that has not the memory for it.
const VARIABLE: &str = "BINDERY_TEST_NO_ROOM";

#[test]
fn a_tree_without_room_is_told() {
    if std::env::var_os(VARIABLE).is_some() {
        return tell_that_there_is_no_room();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_tree_without_room_is_told", "--nocapture"]).env(VARIABLE, "1");
    let limit = || {
        let bytes = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
        // SAFETY: the structure is there, and read only.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const bytes) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the child makes one system call before it executes the program.
    let output = unsafe { command.pre_exec(limit) }.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("there was no room"), "{text}");
}

/// In 4 GiB of address space, for a tree of more than that.
fn tell_that_there_is_no_room() {
    let pages = 1_u64 << 36;
    let shown = said(Tree::new(pages));
    let (begin, end) = shown.split_once(" bytes): ").unwrap();
    let bytes = begin.strip_prefix("no room for a dirty set of 68719476736 pages (").unwrap();
    let bytes: u64 = bytes.parse().unwrap();
    assert!(bytes > pages / 8 && bytes < pages / 8 * 102 / 100, "{shown}");
    assert_eq!(end, "Cannot allocate memory (os error 12)");
    let feed = Arc::new(Feed::new(pages).unwrap());
    assert_eq!(said(feed.join(Joining::AllMarked)), shown);
    assert_eq!(feed.readers(), 0);
    // A bit a page and a byte for 4096 of them.
    let expected =
        "no room for a dirty set of 68719476736 pages (8606711808 bytes): Cannot allocate";
    let refused = said(bitmap(pages));
    assert!(refused.starts_with(expected), "{refused}");
    println!("there was no room");
}
