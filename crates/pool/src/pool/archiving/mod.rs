//! The pool and its archive: objects moved there and back, by command or because nobody uses them.
//!
//! **Where an object is** the catalogue says, in one record that is written when the object is whole in
//! both places: a crash before leaves it where it was, a crash behind where it goes. Only then is its
//! old place given back.
//!
//! **A key is deleted only when its object is.** Ids are never given twice, so a deletion that a
//! network delivers late, or that is repeated, can hit nothing that counts. So a copy stays in the
//! archive when its object is brought back (to move the object there again costs little), and half a
//! copy stays until its object is moved after all, or deleted: then it is an orphan, and swept.

mod connect;
mod error;
mod idle;
mod moving;
mod sweep;

pub use error::{ArchiveError, MoveError};
pub use idle::IdleArchived;
pub use sweep::ArchiveSweep;
