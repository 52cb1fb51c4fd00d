//! Ranges that a guest says its VMM offered.

use bindery_units::PAGE_BYTES;
use bindery_wire::control::{OFFERED_MAX, Offered};

use crate::GuestError;

/// The ranges that are still mapped, ascending by number.
#[derive(Debug, Default)]
pub(crate) struct OfferedTable {
    ranges: Vec<Offered>,
    next: u32,
}

impl OfferedTable {
    /// Takes in a new range.
    ///
    /// # Errors
    /// [`GuestError::Nonsense`] for what is no range, one too many, or a number that does not ascend.
    pub(crate) fn add(&mut self, offered: Offered) -> Result<(), GuestError> {
        let Offered { number, address, bytes } = offered;
        let whole = usize::try_from(bytes).ok().filter(|bytes| bytes.is_multiple_of(PAGE_BYTES));
        let end = whole.filter(|&bytes| bytes > 0).and_then(|bytes| address.0.checked_add(bytes));
        if end.is_none() || !address.is_page_aligned() {
            return Err(GuestError::nonsense(format!("an offer of {bytes} bytes at {address}")));
        }
        let next = number.checked_add(1).filter(|_| number >= self.next);
        let Some(next) = next.filter(|_| self.ranges.len() < OFFERED_MAX) else {
            return Err(GuestError::nonsense("offers that are numbered anyhow, or too many"));
        };
        self.next = next;
        self.ranges.push(offered);
        Ok(())
    }

    /// Takes in that a range is no more.
    ///
    /// # Errors
    /// [`GuestError::Nonsense`] if there is none of this number.
    pub(crate) fn withdraw(&mut self, number: u32) -> Result<(), GuestError> {
        let place = self.ranges.binary_search_by_key(&number, |range| range.number);
        let place =
            place.map_err(|_| GuestError::nonsense("a withdrawal of what was not offered"))?;
        self.ranges.remove(place);
        Ok(())
    }

    pub(crate) fn ranges(&self) -> Vec<Offered> {
        self.ranges.clone()
    }
}

#[cfg(test)]
mod tests {
    use bindery_units::HostAddress;

    use super::*;

    fn offered(number: u32) -> Offered {
        Offered { number, address: HostAddress(1 << 30), bytes: 8192 }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut table = OfferedTable::default();
        table.add(offered(3)).unwrap();
        let whole = offered(4);
        for bad in [
            offered(3),
            offered(2),
            offered(u32::MAX),
            Offered { address: HostAddress(17), ..whole },
            Offered { bytes: 0, ..whole },
            Offered { bytes: 4095, ..whole },
            Offered { bytes: u64::MAX - 4095, ..whole },
        ] {
            assert!(table.add(bad).is_err(), "{bad:?}");
        }
        assert!(table.withdraw(2).is_err());
        table.withdraw(3).unwrap();
        assert!(table.withdraw(3).is_err() && table.ranges().is_empty());
        for number in 4..4 + OFFERED_MAX as u32 {
            table.add(offered(number)).unwrap();
        }
        assert!(table.add(offered(1 << 20)).is_err());
    }
}
