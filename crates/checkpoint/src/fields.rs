//! Little-endian fields and varints, one after the other.

use crate::format_error::FormatError;

/// Reads fields off the front of bytes. Allocates no more than it was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    /// Name of the structure, for errors.
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let split = self.rest.split_at_checked(count);
        let (taken, rest) = split.ok_or(FormatError::Short { what: self.what })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let bytes = self.bytes(N)?;
        Ok(bytes.try_into().expect("as many bytes were taken"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, FormatError> {
        self.array().map(u128::from_le_bytes)
    }

    /// Reads a number of things of which each takes at least `least_bytes` of what follows.
    pub(crate) fn count(&mut self, least_bytes: usize) -> Result<usize, FormatError> {
        let count = self.u32()? as usize;
        let is_possible = count.checked_mul(least_bytes).is_some_and(|it| it <= self.rest.len());
        if is_possible { Ok(count) } else { Err(FormatError::Short { what: self.what }) }
    }

    /// Reads bytes behind their number.
    pub(crate) fn counted(&mut self) -> Result<&'a [u8], FormatError> {
        let count = self.count(1)?;
        self.bytes(count)
    }

    /// Reads UTF-8 behind its number of bytes.
    pub(crate) fn text(&mut self) -> Result<String, FormatError> {
        let what = self.what;
        let text = std::str::from_utf8(self.counted()?);
        text.map(str::to_owned).map_err(|_| FormatError::impossible(what, "a text is no UTF-8"))
    }

    /// Reads an LEB128 number in its shortest form.
    pub(crate) fn varint(&mut self) -> Result<u64, FormatError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(FormatError::impossible(self.what, "a number is not in its shortest form"))
    }

    /// Refuses bytes that are left.
    pub(crate) const fn end(self) -> Result<(), FormatError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(FormatError::impossible(self.what, "it goes on behind its end"))
    }
}

/// Puts bytes behind their number.
pub(crate) fn put_counted(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    into.extend_from_slice(bytes);
}

/// Puts an LEB128 number in its shortest form.
pub(crate) fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Maps small numbers of either sign to small numbers.
pub(crate) const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Undoes [`zigzag`].
pub(crate) const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(number: u64, signed: i64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            put_varint(&mut bytes, zigzag(signed));
            let mut fields = Fields::new("test", &bytes);
            prop_assert_eq!(fields.varint().unwrap(), number);
            prop_assert_eq!(unzigzag(fields.varint().unwrap()), signed);
            fields.end().unwrap();
        }

        #[test]
        fn a_varint_has_one_form(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut fields = Fields::new("test", &bytes);
            if let Ok(number) = fields.varint() {
                let mut again = Vec::new();
                put_varint(&mut again, number);
                prop_assert!(bytes.starts_with(&again));
                prop_assert_eq!(fields.rest.len(), bytes.len() - again.len());
            }
        }
    }
}
