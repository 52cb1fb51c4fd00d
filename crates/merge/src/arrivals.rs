//! Guests that came, on their way to a domain: the one of its name, or of its name and node.
//!
//! Where merging stays within nodes, a guest belongs to the node that most of its memory lies on. A VMM that has
//! just come has touched little of it: it waits until that tells. Meanwhile nothing of it is merged.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use bindery_guest::Connection;
use bindery_units::{NumaNode, PageCount};
use bindery_wire::control::Region;

use crate::domain::{DomainId, Domains};
use crate::grant::Grant;
use crate::home::home_of;
use crate::nodes::{Nodes, StoreNode};
use crate::troubles::Troubles;

/// One in so many bytes of a guest's managed memory has to be there before it tells the node.
const PRESENT_SHARE: u64 = 16;

/// Looks at a guest's memory after which any of it tells the node.
const LOOKS_MAX: u32 = 10;

/// Guests that no domain has yet.
pub(crate) struct Arrivals {
    nodes: Arc<dyn Nodes>,
    waiting: Vec<Arrival>,
}

struct Arrival {
    grant: Arc<Grant>,
    connection: Arc<dyn Connection>,
    /// Looks at its memory so far.
    looks: u32,
}

/// A guest whose domain is known.
pub(crate) struct Settled {
    pub(crate) id: DomainId,
    pub(crate) grant: Arc<Grant>,
    pub(crate) connection: Arc<dyn Connection>,
    /// Node of the domain's store, where merging stays within nodes.
    pub(crate) node: Option<StoreNode>,
}

/// Way in which guests are shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    pub(crate) across_nodes: bool,
    /// Guest that cannot wait: somebody asks something of it.
    pub(crate) awaited: Option<u32>,
}

enum Destination {
    /// The domain of its name.
    Machine,
    Node(NumaNode),
    /// Too little of its memory is there.
    Unknown,
}

impl Arrivals {
    pub(crate) fn new(nodes: Arc<dyn Nodes>) -> Self {
        Self { nodes, waiting: Vec::new() }
    }

    pub(crate) fn add(&mut self, grant: Arc<Grant>, connection: Arc<dyn Connection>) {
        self.waiting.push(Arrival { grant, connection, looks: 0 });
    }

    /// Drops a guest whose connection has ended.
    pub(crate) fn remove(&mut self, id: u32) {
        self.waiting.retain(|arrival| arrival.connection.identity().id != id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out the guests whose domains are known by now.
    pub(crate) fn settle(
        &mut self,
        domains: &Domains,
        sharing: Sharing,
        troubles: &Troubles,
    ) -> Vec<Settled> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let there = if sharing.across_nodes { Vec::new() } else { self.nodes_there(troubles) };
        let mut settled = Vec::new();
        for mut arrival in std::mem::take(&mut self.waiting) {
            let is_awaited = sharing.awaited == Some(arrival.connection.identity().id);
            let node = match self.destination(&mut arrival, domains, &there, is_awaited, troubles) {
                Destination::Machine => None,
                Destination::Node(node) => Some(StoreNode { node, nodes: Arc::clone(&self.nodes) }),
                Destination::Unknown => {
                    self.waiting.push(arrival);
                    continue;
                }
            };
            let Arrival { grant, connection, .. } = arrival;
            let (name, number) = (grant.name().to_owned(), node.as_ref().map(|node| node.node));
            settled.push(Settled { id: DomainId { name, node: number }, grant, connection, node });
        }
        settled
    }

    /// Returns the nodes that have memory; none if it cannot be told.
    fn nodes_there(&self, troubles: &Troubles) -> Vec<NumaNode> {
        self.nodes.with_memory().unwrap_or_else(|error| {
            if troubles.note("nodes", &error) {
                tracing::warn!(%error, "pages are merged across nodes: it cannot be told which there are");
            }
            Vec::new()
        })
    }

    fn destination(
        &self,
        arrival: &mut Arrival,
        domains: &Domains,
        there: &[NumaNode],
        is_awaited: bool,
        troubles: &Troubles,
    ) -> Destination {
        if there.len() <= 1 {
            return Destination::Machine;
        }
        // What its last connection maps is given back by what this one reports, in the same domain.
        if let Some(node) = arrival.last_node(domains) {
            return Destination::Node(node);
        }
        arrival.looks += 1;
        let home = self.home(arrival, there, is_awaited, troubles);
        // Something has to be said of a guest that is asked for, though it may use none of these nodes.
        match home.or(is_awaited.then_some(there[0])) {
            Some(node) => {
                let name = &arrival.connection.identity().name;
                tracing::info!(name, %node, "a guest shares pages within a node");
                Destination::Node(node)
            }
            None => Destination::Unknown,
        }
    }

    /// Returns the node that a guest belongs to, if that can be told by now.
    fn home(
        &self,
        arrival: &Arrival,
        there: &[NumaNode],
        is_awaited: bool,
        troubles: &Troubles,
    ) -> Option<NumaNode> {
        let regions = arrival.connection.regions();
        // Pages that are merged with the store of a daemon that ended lie on no node of the guest's own, and others
        // wait for it to have them looked at.
        let waits = !is_awaited && !arrival.connection.holds_other_stores();
        let enough_bytes = if waits { enough_bytes(&regions, arrival.looks) } else { 0 };
        match self.nodes.placement(arrival.connection.identity().pid, &regions, there) {
            Ok(placement) => home_of(&placement, enough_bytes),
            Err(error) => {
                note_unseen(arrival, there[0], &error, troubles);
                Some(there[0])
            }
        }
    }
}

impl Arrival {
    /// Returns the node of the domain that has an earlier connection of the guest's process.
    fn last_node(&self, domains: &Domains) -> Option<NumaNode> {
        let own = domains.iter().filter(|(id, _)| id.name == self.grant.name());
        let mut known = own.filter(|(_, domain)| domain.knows(self.connection.identity()));
        known.find_map(|(DomainId { node, .. }, _)| *node)
    }
}

/// Returns how much memory of a guest has to be there at the look of that number.
fn enough_bytes(regions: &[Region], look: u32) -> u64 {
    let pages = regions.iter().map(|region| u64::from(region.pages.count)).sum();
    let share = if look > LOOKS_MAX { 0 } else { PageCount(pages).bytes().0 / PRESENT_SHARE };
    share.max(1)
}

/// Returns the subject of troubles with finding out where a guest's memory lies.
fn place_of(pid: i32) -> impl Display {
    std::fmt::from_fn(move |f| write!(f, "memory of process {pid}"))
}

fn note_unseen(arrival: &Arrival, node: NumaNode, error: &io::Error, troubles: &Troubles) {
    let identity = arrival.connection.identity();
    if !arrival.connection.has_ended() && troubles.note(place_of(identity.pid), error) {
        tracing::warn!(
            name = identity.name,
            pid = identity.pid,
            %error,
            "a guest counts as one of {node}: it cannot be told where its memory lies"
        );
    }
}
