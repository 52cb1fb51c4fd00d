//! Looking at all parts of an object without reading all of it.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use super::{Damage, ReadError, Stored};
use crate::archive::format::{HEADER_BYTES, UNIT_BYTES};
use crate::archive::runtime::Pending;

impl Stored {
    /// Looks at every part with one small request: that it is there, has the length that it should have, and
    /// ends with the unit that it should end with. Blocks.
    ///
    /// # Errors
    /// The first [`ReadError`].
    pub fn look(&self) -> Result<(), ReadError> {
        let mut asked = VecDeque::new();
        for part in 0..self.header.layout.parts() {
            if asked.len() == self.archive.0.options.parts_at_once {
                self.look_next(&mut asked)?;
            }
            let came = self.archive.0.get(self.place(part).key(), self.end_of(part));
            asked.push_back((part, came));
        }
        while !asked.is_empty() {
            self.look_next(&mut asked)?;
        }
        Ok(())
    }

    /// The last unit of a part, in bytes, and one byte more, which is not there; or its header.
    fn end_of(&self, part: u32) -> Range<u64> {
        let layout = self.header.layout;
        let end = layout.stored_bytes(part);
        let is_empty = layout.units_of(part).is_empty();
        let last = if is_empty { HEADER_BYTES as u64 } else { UNIT_BYTES as u64 };
        end - last..end + 1
    }

    fn look_next(&self, asked: &mut VecDeque<(u32, Pending<Bytes>)>) -> Result<(), ReadError> {
        let Some((part, came)) = asked.pop_front() else { return Ok(()) };
        let (place, range, mut came) = (self.place(part), self.end_of(part), Some(came));
        let units = self.header.layout.units_of(part);
        place.repeat(|| {
            let bytes = match came.take() {
                Some(first) => first.wait().map_err(|fault| place.fault(fault)),
                None => place.get(range.clone()),
            };
            let bytes = place.part(bytes)?;
            let (found, expected) = (bytes.len() as u64, range.end - range.start - 1);
            if found != expected {
                return Err(place.damaged(Damage::Length { found, expected }));
            }
            match units.clone().last() {
                Some(unit) => {
                    self.verify_unit(unit, &bytes).map_err(|damage| place.damaged(damage))
                }
                None => Ok(()),
            }
        })
    }
}
