//! Guests on machines of several nodes, which are made up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bindery_guest::Connection;
use bindery_units::NumaNode;
use bindery_wire::control::Region;

use super::audit::assert_converged;
use super::model::ModelGuest;
use super::process::Line;
use super::scenes::Scene;
use crate::engine::GuestsManaged;
use crate::nodes::{Nodes, Placement};
use crate::status::GuestState;
use crate::{Engine, MergeSettings};

const MIB: u64 = 1 << 20;

/// Pages of each guest: a MiB.
const PAGES: u32 = 256;

/// Nodes that a test has made up, and what was asked of them.
#[derive(Debug)]
struct MadeUp {
    there: Vec<NumaNode>,
    /// Memory of each process, in bytes by node. Of others nothing can be told.
    memory: Mutex<BTreeMap<i32, BTreeMap<NumaNode, u64>>>,
    /// Nodes whose memory was asked for, one for each segment.
    preferred: Mutex<Vec<NumaNode>>,
    /// Set where the daemon may use no memory of any of them.
    refuses: AtomicBool,
    looks: AtomicU32,
}

impl MadeUp {
    fn of(count: u32) -> Arc<Self> {
        Arc::new(Self {
            there: (0..count).map(NumaNode).collect(),
            memory: Mutex::default(),
            preferred: Mutex::default(),
            refuses: AtomicBool::new(false),
            looks: AtomicU32::new(0),
        })
    }

    /// Puts so much memory of a guest on a node, and none on others.
    fn put(&self, guest: &ModelGuest, node: u32, bytes: u64) {
        let memory = BTreeMap::from([(NumaNode(node), bytes)]);
        self.memory.lock().unwrap().insert(guest.identity().pid, memory);
    }

    fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }
}

impl Nodes for MadeUp {
    fn with_memory(&self) -> io::Result<Vec<NumaNode>> {
        Ok(self.there.clone())
    }

    fn placement(&self, pid: i32, _: &[Region], there: &[NumaNode]) -> io::Result<Placement> {
        assert!(there.len() > 1, "of one node nothing is asked");
        self.looks.fetch_add(1, Ordering::Relaxed);
        let bytes = self.memory.lock().unwrap().get(&pid).cloned();
        let bytes = bytes.ok_or(io::ErrorKind::PermissionDenied)?;
        Ok(Placement { bytes, memory_nodes: there.to_vec(), cpu_nodes: there.to_vec() })
    }

    fn prefer(&self, file: &File, bytes: u64, node: NumaNode) -> io::Result<()> {
        assert_eq!(file.metadata()?.len(), bytes, "all of the file");
        self.preferred.lock().unwrap().push(node);
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => Ok(()),
        }
    }
}

fn within() -> MergeSettings {
    MergeSettings { across_nodes: false, ..MergeSettings::default() }
}

/// A machine of `count` nodes.
fn machine(settings: MergeSettings, count: u32) -> (Scene, Arc<MadeUp>) {
    let nodes = MadeUp::of(count);
    let engine = Engine::with_nodes(settings, Arc::<MadeUp>::clone(&nodes));
    (Scene { engine, guests: Vec::new() }, nodes)
}

/// Lets a guest come whose pages hold what those of all others do.
fn guest(scene: &mut Scene) -> Arc<ModelGuest> {
    scene.guest("a", PAGES, |page| u64::from(page + 1)).0
}

/// Lets guests come, each with all of its memory on a node.
fn guests(scene: &mut Scene, nodes: &MadeUp, numbers: &[u32]) -> Vec<Arc<ModelGuest>> {
    let come = |number: &u32| {
        let guest = guest(scene);
        nodes.put(&guest, *number, MIB);
        guest
    };
    numbers.iter().map(come).collect()
}

/// Returns how many pages of each guest are merged.
fn merged(guests: &[Arc<ModelGuest>]) -> Vec<usize> {
    guests.iter().map(|guest| guest.merged().len()).collect()
}

/// Returns the node, the guests and the canonical pages of each domain.
fn domains(scene: &Scene) -> Vec<(Option<u32>, usize, u64)> {
    let status = scene.engine.status();
    let figures = status.domains.iter().map(|domain| {
        assert!(domain.guests.iter().all(|guest| guest.node == domain.node));
        (domain.node, domain.guests.len(), domain.pages_shared)
    });
    figures.collect()
}

#[test]
fn guests_of_two_nodes_share_nothing() {
    let (mut scene, nodes) = machine(within(), 2);
    let guests = guests(&mut scene, &nodes, &[0, 1]);
    scene.periods(6);
    assert_eq!(merged(&guests), [0, 0]);
    assert_eq!(domains(&scene), [(Some(0), 1, 0), (Some(1), 1, 0)]);
    assert!(nodes.preferred.lock().unwrap().is_empty(), "there is nothing to store");
}

#[test]
fn guests_of_one_node_share_in_its_memory() {
    let (mut scene, nodes) = machine(within(), 2);
    let guests = guests(&mut scene, &nodes, &[1, 0, 1, 0, 1]);
    scene.periods(4);
    assert_eq!(merged(&guests), [PAGES as usize; 5]);
    let pages = u64::from(PAGES);
    assert_eq!(domains(&scene), [(Some(0), 2, pages), (Some(1), 3, pages)]);
    assert_eq!(nodes.looks(), 5, "once for each");
    let preferred = nodes.preferred.lock().unwrap();
    let of = |node| preferred.iter().filter(|it| **it == NumaNode(node)).count();
    assert_eq!([0, 1, 2].map(of), [PAGES as usize / 16, PAGES as usize / 16, 0]);
}

#[test]
fn across_nodes_all_share_and_nothing_is_asked() {
    let (mut scene, nodes) = machine(MergeSettings::default(), 2);
    let guests = guests(&mut scene, &nodes, &[0, 1]);
    scene.periods(4);
    assert_eq!(merged(&guests), [PAGES as usize; 2]);
    assert_converged(&guests);
    assert_eq!(domains(&scene), [(None, 2, u64::from(PAGES))]);
    assert_eq!((nodes.looks(), nodes.preferred.lock().unwrap().len()), (0, 0));
}

#[test]
fn a_machine_of_one_node_is_as_if_nothing_was_set() {
    let (mut scene, nodes) = machine(within(), 1);
    let guests = guests(&mut scene, &nodes, &[0, 0]);
    scene.periods(4);
    assert_eq!(merged(&guests), [PAGES as usize; 2]);
    assert_eq!(domains(&scene), [(None, 2, u64::from(PAGES))]);
    assert_eq!((nodes.looks(), nodes.preferred.lock().unwrap().len()), (0, 0));
}

#[test]
fn domains_of_a_node_share_nothing_either() {
    let (mut scene, nodes) = machine(within(), 2);
    let one = guest(&mut scene);
    let (other, _) = scene.guest("b", PAGES, |page| u64::from(page + 1));
    [&one, &other].into_iter().for_each(|guest| nodes.put(guest, 1, MIB));
    scene.periods(6);
    assert_eq!(merged(&[one, other]), [0, 0]);
}

#[test]
fn a_guest_waits_until_its_memory_tells() {
    let (mut scene, nodes) = machine(within(), 2);
    let guests = guests(&mut scene, &nodes, &[1, 1, 1]);
    nodes.put(&guests[1], 0, MIB / 16 - 1);
    nodes.put(&guests[2], 0, 0);
    scene.periods(10);
    assert_eq!(domains(&scene), [(Some(1), 1, 0)]);
    // The little that there is tells after a while, and nothing never does.
    scene.periods(2);
    assert_eq!(domains(&scene), [(Some(0), 1, 0), (Some(1), 1, 0)]);
    nodes.put(&guests[2], 1, 1);
    scene.periods(4);
    assert_eq!(merged(&guests), [PAGES as usize, 0, PAGES as usize]);
}

#[test]
fn a_guest_that_leaves_while_it_waits_is_forgotten() {
    let (mut scene, nodes) = machine(within(), 2);
    let guest = guest(&mut scene);
    nodes.put(&guest, 0, 0);
    scene.periods(2);
    assert_eq!(scene.engine.set_across_nodes(true), Err(GuestsManaged));
    scene.engine.remove_guest(guest.identity().id);
    nodes.put(&guest, 0, MIB);
    scene.periods(2);
    assert_eq!(domains(&scene), []);
    assert_eq!(scene.engine.set_across_nodes(true), Ok(()));
}

#[test]
fn a_guest_that_is_asked_for_waits_no_longer() {
    let (mut scene, nodes) = machine(within(), 2);
    let guest = guest(&mut scene);
    nodes.put(&guest, 1, 1);
    scene.periods(2);
    assert_eq!(domains(&scene), []);
    assert_eq!(scene.engine.unmerge(guest.identity().id).unwrap().left, 0);
    scene.periods(1);
    assert_eq!(domains(&scene), [(Some(1), 1, 0)]);
    assert_eq!(scene.status_of(&guest).state, GuestState::Unmerged);
}

#[test]
fn a_guest_that_cannot_be_looked_at_is_of_the_first_node() {
    let (mut scene, nodes) = machine(within(), 2);
    let mut all = guests(&mut scene, &nodes, &[0, 1]);
    all.push(guest(&mut scene));
    scene.periods(4);
    assert_eq!(merged(&all), [PAGES as usize, 0, PAGES as usize]);
}

#[test]
fn a_guest_comes_back_to_where_its_pages_are() {
    let (mut scene, nodes) = machine(within(), 2);
    let guests = guests(&mut scene, &nodes, &[1, 1, 0]);
    scene.periods(4);
    assert_eq!(merged(&guests), [PAGES as usize, PAGES as usize, 0]);
    guests[0].set_line(Line::Closed);
    scene.periods(1);
    // Its memory has moved meanwhile.
    nodes.put(&guests[0], 0, MIB);
    let grant = scene.engine.domain("a").unwrap();
    let back = ModelGuest::connect(9, &grant, &guests[0].process);
    scene.engine.add_guest(&grant, back.clone());
    scene.guests.push(Arc::clone(&back));
    scene.periods(10);
    assert_eq!(domains(&scene), [(Some(0), 1, 0), (Some(1), 2, u64::from(PAGES))]);
    assert_eq!(merged(&[back]), [PAGES as usize]);
}

#[test]
fn without_memory_of_the_node_merging_goes_on() {
    let (mut scene, nodes) = machine(within(), 2);
    nodes.refuses.store(true, Ordering::Relaxed);
    let guests = guests(&mut scene, &nodes, &[1, 1, 0]);
    scene.periods(4);
    assert_eq!(merged(&guests), [PAGES as usize, PAGES as usize, 0]);
}

#[test]
fn what_is_shared_is_changed_only_without_guests() {
    let (mut scene, nodes) = machine(MergeSettings::default(), 2);
    let first = guests(&mut scene, &nodes, &[0, 1]);
    assert_eq!(scene.engine.set_across_nodes(false), Err(GuestsManaged), "they have come already");
    scene.periods(4);
    assert_eq!(scene.engine.set_across_nodes(false), Err(GuestsManaged));
    assert_eq!(scene.engine.set_across_nodes(true), Ok(()), "it is so");
    // What a process maps is there, though its connection is not.
    first.iter().for_each(|guest| guest.set_line(Line::Closed));
    scene.periods(1);
    assert_eq!(scene.engine.set_across_nodes(false), Err(GuestsManaged));
    first.iter().for_each(|guest| guest.process().end());
    assert_eq!(scene.engine.set_across_nodes(false), Ok(()));
    let second = guests(&mut scene, &nodes, &[0, 1]);
    scene.periods(6);
    assert_eq!(merged(&second), [0, 0]);
}
