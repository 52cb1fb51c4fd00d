//! Marks that software made, and two sources as one.

use super::{Abilities, Collected, Source, SourceError};
use crate::marks::{Drain, Marks};

/// Marks that the VMM's own devices made, in a set that they share with this source. KVM does not see
/// what they write to the guest's memory; a device marks a page *after* it wrote it, or a collection
/// in between takes the mark away with the old content.
#[derive(Debug)]
pub struct Software<D> {
    marked: D,
}

impl<D: Drain> Software<D> {
    /// What is marked in `marked`, which has the guest's pages.
    pub const fn new(marked: D) -> Self {
        Self { marked }
    }

    /// The set, for whoever marks.
    pub const fn marked(&self) -> &D {
        &self.marked
    }
}

impl<D: Drain> Source for Software<D> {
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        Ok(Collected { pages: self.marked.drain(marks) })
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            vcpu_writes: false,
            process_writes: true,
            first_has_more: false,
            beside_writers: true,
        }
    }
}

/// Two sources of one guest: a page that either has was written.
///
/// The one that may fail is best the first: if it does, the second is not asked, and keeps what it
/// has for the next time.
#[derive(Debug)]
pub struct Union<A, B>(pub A, pub B);

impl<A: Source, B: Source> Source for Union<A, B> {
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        let (first, second) = (self.0.collect(marks)?, self.1.collect(marks)?);
        Ok(Collected { pages: first.pages + second.pages })
    }

    fn abilities(&self) -> Abilities {
        let (first, second) = (self.0.abilities(), self.1.abilities());
        Abilities {
            vcpu_writes: first.vcpu_writes || second.vcpu_writes,
            process_writes: first.process_writes || second.process_writes,
            first_has_more: first.first_has_more || second.first_has_more,
            beside_writers: first.beside_writers && second.beside_writers,
        }
    }
}
