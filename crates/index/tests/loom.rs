//! The trie's protocol under every interleaving of two or three threads.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p bindery-index --test loom --release
//! ```
//!
//! Reclamation is modelled (`epoch::model`): what was retired comes back at the first instant at
//! which no thread is pinned, and is handed out again first. Keys are chosen so that changes meet
//! on one word, or on neighbouring ones. A pass is not a proof: loom bounds preemptions here, and
//! does not explore load buffering. Miri and ThreadSanitizer run over `tests/stress.rs` as well.

#![cfg(loom)]

use bindery_index::{Audit, Handle, Heads, Index, Inserted, pin};
use loom::sync::Arc;
use loom::thread;

/// Under one root: `A` and `B` part at bit 2, `C` parts from both at bit 1, `D` from all at bit 0.
const A: u64 = 0b000 << 61;
const B: u64 = 0b001 << 61;
const C: u64 = 0b010 << 61;
const D: u64 = 0b100 << 61;

type Tree = Arc<Index<Heads>>;

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

fn tree(keys: &[u64]) -> Tree {
    tree_of(12, keys)
}

/// One in which deletions gather.
fn larger_tree(keys: &[u64]) -> Tree {
    tree_of(256, keys)
}

fn tree_of(capacity: u32, keys: &[u64]) -> Tree {
    let tree = Arc::new(Index::with_capacity(0, capacity, Heads));
    for key in keys {
        insert(&tree, *key);
    }
    tree
}

/// Inserts the key with itself as its value. The handle if it was new.
fn insert(tree: &Tree, key: u64) -> Option<Handle> {
    match tree.insert(&key, key, &pin()).expect("there is room") {
        Inserted::New(handle) => Some(handle),
        Inserted::Found(_, value) => {
            assert_eq!(value, key, "found a leaf of another key");
            None
        }
    }
}

fn find(tree: &Tree, key: u64) -> Option<Handle> {
    let (handle, value) = tree.query(&key, &pin())?;
    assert_eq!(value, key, "found a leaf of another key");
    Some(handle)
}

/// Finds and deletes under one guard, as whoever does not own the handle must.
fn find_and_delete(tree: &Tree, key: u64) -> bool {
    let guard = pin();
    let found = tree.query(&key, &guard);
    found.is_some_and(|(handle, _)| tree.delete(handle, &guard))
}

/// Exactly these keys are there; all of them can be deleted, and then every leaf and every node is
/// free, once.
fn settle(mut tree: Tree, keys: &[u64]) {
    let index = Arc::get_mut(&mut tree).expect("the other threads are gone");
    let audit = index.audit();
    assert_eq!((audit.leaves, audit.leaves_waiting, audit.nodes_waiting), (keys.len(), 0, 0));
    assert_eq!(audit.nodes, keys.len().saturating_sub(1), "a frozen node was left behind");
    assert_eq!(tree.len(), keys.len() as u64);
    for key in [A, B, C, D] {
        assert_eq!(find(&tree, key).is_some(), keys.contains(&key), "{key:#x}");
    }
    for key in keys {
        assert!(find_and_delete(&tree, *key));
    }
    let index = Arc::get_mut(&mut tree).expect("the other threads are gone");
    let nothing = Audit { leaves: 0, nodes: 0, leaves_waiting: 0, nodes_waiting: 0 };
    assert_eq!(index.audit(), nothing);
}

fn spawn<R: 'static>(
    tree: &Tree,
    body: impl FnOnce(&Tree) -> R + 'static,
) -> thread::JoinHandle<R> {
    let tree = Arc::clone(tree);
    thread::spawn(move || body(&tree))
}

#[test]
fn insert_beside_insert_of_another_key() {
    model(3, || {
        let tree = tree(&[A]);
        let other = spawn(&tree, |tree| insert(tree, B).is_some());
        assert!(insert(&tree, C).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[A, B, C]);
    });
}

#[test]
fn insert_beside_insert_of_the_same_key() {
    model(3, || {
        let tree = tree(&[D]);
        let other = spawn(&tree, |tree| insert(tree, A).is_some());
        let own = insert(&tree, A).is_some();
        assert!(own != other.join().unwrap(), "one of the two is new");
        settle(tree, &[A, D]);
    });
}

#[test]
fn insert_beside_insert_into_an_empty_root() {
    model(3, || {
        let tree = tree(&[]);
        let other = spawn(&tree, |tree| insert(tree, A).is_some());
        assert!(insert(&tree, B).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[A, B]);
    });
}

#[test]
fn insert_beside_delete_of_its_neighbour() {
    model(3, || {
        let tree = tree(&[A, C]);
        let other = spawn(&tree, |tree| find_and_delete(tree, A));
        assert!(insert(&tree, B).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[B, C]);
    });
}

#[test]
fn insert_beside_delete_of_the_node_above() {
    model(3, || {
        let tree = tree(&[A, B, D]);
        // Deleting D freezes the topmost node, the holder of the edge that the insert needs.
        let other = spawn(&tree, |tree| find_and_delete(tree, D));
        assert!(insert(&tree, C).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[A, B, C]);
    });
}

#[test]
fn delete_beside_delete_of_the_same_handle() {
    model(3, || {
        let tree = tree(&[A, B]);
        let other = spawn(&tree, |tree| find_and_delete(tree, A));
        let own = find_and_delete(&tree, A);
        assert!(own != other.join().unwrap(), "one of the two deletes it");
        settle(tree, &[B]);
    });
}

#[test]
fn delete_beside_delete_of_the_sibling() {
    model(3, || {
        let tree = tree(&[A, B]);
        let other = spawn(&tree, |tree| find_and_delete(tree, A));
        assert!(find_and_delete(&tree, B));
        assert!(other.join().unwrap());
        settle(tree, &[]);
    });
}

/// Both parents freeze, one above the other: the lower one is what is left of the upper one.
#[test]
fn delete_beside_delete_one_node_up() {
    model(3, || {
        let tree = tree(&[A, B, C]);
        let other = spawn(&tree, |tree| find_and_delete(tree, C));
        assert!(find_and_delete(&tree, A));
        assert!(other.join().unwrap());
        settle(tree, &[B]);
    });
}

#[test]
fn delete_and_reinsert_beside_each_other() {
    model(3, || {
        let tree = tree(&[A, B]);
        let churn = |tree: &Tree| {
            let deleted = find_and_delete(tree, A);
            (deleted, insert(tree, A).is_some())
        };
        let other = spawn(&tree, churn);
        let (own_deleted, own_inserted) = churn(&tree);
        let (other_deleted, other_inserted) = other.join().unwrap();
        let deaths = u32::from(own_deleted) + u32::from(other_deleted);
        let births = u32::from(own_inserted) + u32::from(other_inserted);
        assert_eq!(births, deaths, "A was there once before and is there once now");
        settle(tree, &[A, B]);
    });
}

/// The leaf and the node of one key are reused for another while a third thread deletes.
#[test]
fn delete_beside_reuse_for_another_key() {
    model(3, || {
        let tree = tree(&[A, B]);
        let other = spawn(&tree, |tree| find_and_delete(tree, B));
        assert!(find_and_delete(&tree, A));
        assert!(insert(&tree, C).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[C]);
    });
}

/// In a larger index two deletions gather before they are handed over: one thread's with another's,
/// or both by an audit. Whichever it is, what they took out is reused once.
#[test]
fn deletions_that_gather_beside_each_other_and_reuse() {
    model(2, || {
        let tree = larger_tree(&[A, B, C]);
        let other = spawn(&tree, |tree| find_and_delete(tree, B));
        assert!(find_and_delete(&tree, A));
        assert!(insert(&tree, D).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[C, D]);
    });
}

/// Two batches ripen, and whoever hands one over links what is ripe, beside an insertion that may take
/// from it.
#[test]
fn batches_that_are_linked_beside_deletions_and_reuse() {
    model(2, || {
        let tree = larger_tree(&[A, B, C, D]);
        let other = spawn(&tree, |tree| find_and_delete(tree, C) && find_and_delete(tree, D));
        assert!(find_and_delete(&tree, A));
        assert!(find_and_delete(&tree, B));
        assert!(insert(&tree, A).is_some());
        assert!(other.join().unwrap());
        settle(tree, &[A]);
    });
}

#[test]
fn query_beside_two_inserts() {
    model(2, || {
        let tree = tree(&[A]);
        let inserts = spawn(&tree, |tree| insert(tree, C).is_some());
        let reader = spawn(&tree, |tree| {
            assert!(find(tree, A).is_some(), "it stays");
            let seen = find(tree, B).is_some();
            assert!(!seen || find(tree, B).is_some(), "what was seen is seen again");
        });
        assert!(insert(&tree, B).is_some());
        assert!(inserts.join().unwrap());
        reader.join().unwrap();
        settle(tree, &[A, B, C]);
    });
}

#[test]
fn query_beside_insert_and_delete() {
    model(2, || {
        let tree = tree(&[A, C]);
        let inserts = spawn(&tree, |tree| insert(tree, B).is_some());
        let reader = spawn(&tree, |tree| {
            assert!(find(tree, C).is_some(), "it stays");
            let gone = find(tree, A).is_none();
            assert!(!gone || find(tree, A).is_none(), "what is gone stays gone");
        });
        assert!(find_and_delete(&tree, A));
        assert!(inserts.join().unwrap());
        reader.join().unwrap();
        settle(tree, &[B, C]);
    });
}

#[test]
fn query_beside_two_deletes() {
    model(2, || {
        let tree = tree(&[A, B, C]);
        let deletes = spawn(&tree, |tree| find_and_delete(tree, C));
        let reader = spawn(&tree, |tree| assert!(find(tree, B).is_some(), "it stays"));
        assert!(find_and_delete(&tree, A));
        assert!(deletes.join().unwrap());
        reader.join().unwrap();
        settle(tree, &[B]);
    });
}

#[test]
fn query_beside_delete_and_reinsert() {
    model(3, || {
        let tree = tree(&[A, B]);
        let reader = spawn(&tree, |tree| {
            assert!(find(tree, B).is_some(), "it stays");
            // Found or not, but never a leaf of another key, and never one not deleted yet.
            let guard = pin();
            if let Some((handle, value)) = tree.query(&A, &guard) {
                assert_eq!((value, tree.value(handle)), (A, A), "reused under a guard");
            }
        });
        assert!(find_and_delete(&tree, A));
        assert!(insert(&tree, C).is_some());
        assert!(insert(&tree, A).is_some());
        reader.join().unwrap();
        settle(tree, &[A, B, C]);
    });
}

#[test]
fn exchange_beside_exchange() {
    model(3, || {
        let tree = tree(&[A]);
        let handle = find(&tree, A).unwrap();
        let other = spawn(&tree, move |tree| tree.exchange_value(handle, A, 1).is_ok());
        let own = tree.exchange_value(handle, A, 2).is_ok();
        let other = other.join().unwrap();
        assert!(own != other);
        assert_eq!(tree.value(handle), if own { 2 } else { 1 });
    });
}
