//! Device state, put together from its pieces.

use crate::format::FormatError;

/// Most bytes of device state that a destination takes.
pub const DEVICE_STATE_BYTES_MAX: u64 = 256 << 20;

/// Device state that arrives in pieces. Grows with what arrives, not with what is announced.
#[derive(Clone, Debug, Default)]
pub struct DeviceStatePieces {
    bytes: Vec<u8>,
    total: Option<u64>,
}

impl DeviceStatePieces {
    /// Adds the next piece. Returns true when all have arrived.
    ///
    /// # Errors
    /// [`FormatError::Impossible`] for a piece that does not follow, or a whole that is too long.
    pub fn push(&mut self, offset: u64, total: u64, piece: &[u8]) -> Result<bool, FormatError> {
        let follows = offset == self.bytes.len() as u64
            && self.total.is_none_or(|it| it == total && offset < it);
        if !follows || total > DEVICE_STATE_BYTES_MAX {
            let why = "it does not follow the piece before, or the whole is longer than 256 MiB";
            return Err(FormatError::impossible("piece of device state", why));
        }
        self.total = Some(total);
        self.bytes.extend_from_slice(piece);
        Ok(self.bytes.len() as u64 == total)
    }

    /// Returns the whole, if all pieces have arrived.
    #[must_use]
    pub fn whole(&self) -> Option<&[u8]> {
        self.total.filter(|total| *total == self.bytes.len() as u64).map(|_| &self.bytes[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other() {
        let mut pieces = DeviceStatePieces::default();
        assert_eq!(pieces.whole(), None);
        assert_eq!(pieces.push(0, 5, b"abc"), Ok(false));
        assert!(pieces.push(0, 5, b"abc").is_err() && pieces.push(3, 6, b"abc").is_err());
        assert_eq!(pieces.push(3, 5, b"de"), Ok(true));
        assert_eq!(pieces.whole(), Some(&b"abcde"[..]));
        assert!(pieces.push(5, 5, b"").is_err());
        assert!(DeviceStatePieces::default().push(0, u64::MAX, b"a").is_err());
        assert_eq!(DeviceStatePieces::default().push(0, 0, b""), Ok(true));
    }
}
