//! Makes what `xen-save-devices-state` writes a stream that `migrate-incoming` takes. Pure.
//!
//! A stream of QEMU (`migration/savevm.c`) begins with a magic and a version, both big-endian words. Then
//! come sections, each with its kind as the first byte, and `0x00` ends them.
//!
//! ```text
//! xen-save-devices-state   QEVM 3              04 … 04 … 00
//! made here                QEVM 3  07 machine  04 … 04 … 00  06 description
//! ```
//!
//! Section `07`, the configuration, is a big-endian length and the machine's name. Without it the load fails.
//! Section `06` describes the sections before it, in JSON of a big-endian length; without it the load warns.

/// Magic and version.
const HEADER: [u8; 8] = *b"QEVM\0\0\0\x03";

/// First byte of the section that names the machine (`QEMU_VM_CONFIGURATION`).
const CONFIGURATION: u8 = 0x07;

/// First byte of a whole section of one device (`QEMU_VM_SECTION_FULL`).
const DEVICE: u8 = 0x04;

/// Ends the sections (`QEMU_VM_EOF`).
const END: u8 = 0x00;

/// An empty description of sections (`QEMU_VM_VMDESCRIPTION`).
const DESCRIPTION: [u8; 7] = [0x06, 0, 0, 0, 2, b'{', b'}'];

/// The longest name of a machine, in bytes. QEMU's longest has a quarter of it.
const MACHINE_BYTES_MAX: usize = 255;

/// Reason for which bytes are no stream of device state alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The beginning is not that of a stream of version 3.
    #[error("{bytes} bytes that do not begin as a stream of QEMU does")]
    Header {
        /// Length of the bytes.
        bytes: usize,
    },
    /// The stream has its configuration already, or begins with something else than a device.
    #[error("its first section is of kind {0:#04x}, and not a device's")]
    FirstSection(u8),
    /// The end is missing.
    #[error("it has no end: the storage for it may be full")]
    Unfinished,
    /// The machine's name cannot be in a stream.
    #[error("{0:?} is no name of a machine")]
    Machine(String),
}

/// Completes a stream of `xen-save-devices-state`, so that `migrate-incoming` loads it into a machine of type
/// `machine`.
///
/// # Errors
/// [`StreamError`] if the bytes are not such a stream, or were completed before.
pub fn complete(raw: &[u8], machine: &str) -> Result<Vec<u8>, StreamError> {
    if machine.is_empty() || machine.len() > MACHINE_BYTES_MAX {
        return Err(StreamError::Machine(machine.to_owned()));
    }
    let sections = raw.strip_prefix(&HEADER).ok_or(StreamError::Header { bytes: raw.len() })?;
    match sections {
        [] => return Err(StreamError::Unfinished),
        [DEVICE, .., END] => {}
        [DEVICE, ..] => return Err(StreamError::Unfinished),
        [kind, ..] => return Err(StreamError::FirstSection(*kind)),
    }
    let length = (machine.len() as u32).to_be_bytes();
    let parts: [&[u8]; 6] =
        [&HEADER, &[CONFIGURATION], &length, machine.as_bytes(), sections, &DESCRIPTION];
    Ok(parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(body: &[u8]) -> Vec<u8> {
        [&HEADER[..], &[DEVICE], body, &[END]].concat()
    }

    #[test]
    fn a_stream_gets_its_configuration_and_description() {
        let made = complete(b"QEVM\0\0\0\x03\x04abc\0", "pc").unwrap();
        assert_eq!(made, b"QEVM\0\0\0\x03\x07\0\0\0\x02pc\x04abc\0\x06\0\0\0\x02{}");
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        assert_eq!(complete(b"", "pc"), Err(StreamError::Header { bytes: 0 }));
        let old = b"QEVM\0\0\0\x02\x04\0";
        assert_eq!(complete(old, "pc"), Err(StreamError::Header { bytes: 10 }));
        assert_eq!(complete(&HEADER, "pc"), Err(StreamError::Unfinished));
        assert_eq!(complete(&raw(b"x")[..10], "pc"), Err(StreamError::Unfinished));
        let complete_already = complete(&raw(b"x"), "pc").unwrap();
        assert_eq!(
            complete(&complete_already, "pc"),
            Err(StreamError::FirstSection(CONFIGURATION))
        );
        assert!(
            complete(&raw(b"x"), "").is_err() && complete(&raw(b"x"), &"x".repeat(256)).is_err()
        );
    }

    /// Reads what was made as QEMU does (`qemu_loadvm_state`), for streams whose one device fills the body.
    fn read(made: &[u8], body: usize) -> (&[u8], &[u8]) {
        let (header, rest) = made.split_at(8);
        assert_eq!((header, rest[0]), (&HEADER[..], CONFIGURATION));
        let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
        let (machine, rest) = rest[5..].split_at(length);
        let (device, rest) = rest.split_at(1 + body);
        assert_eq!((device[0], rest[0]), (DEVICE, END));
        let length = u32::from_be_bytes(rest[2..6].try_into().unwrap()) as usize;
        assert_eq!((rest[1], rest[6..].len()), (0x06, length));
        assert_eq!(&rest[6..], b"{}");
        (machine, &device[1..])
    }

    proptest! {
        #[test]
        fn machine_and_devices_are_read_back(
            body in prop::collection::vec(any::<u8>(), 0..300), machine in "[a-z0-9.-]{1,64}",
        ) {
            let made = complete(&raw(&body), &machine).unwrap();
            prop_assert_eq!(read(&made, body.len()), (machine.as_bytes(), &body[..]));
        }

        #[test]
        fn any_bytes_are_taken_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = complete(&bytes, "pc");
            let _ = complete(&[&HEADER[..], &bytes].concat(), "pc");
        }

        #[test]
        fn a_stream_that_was_cut_off_is_refused(
            body in prop::collection::vec(1_u8.., 1..100), kept in 0_usize..100,
        ) {
            let whole = raw(&body);
            prop_assert!(complete(&whole[..kept.min(whole.len() - 1)], "pc").is_err());
        }
    }
}
