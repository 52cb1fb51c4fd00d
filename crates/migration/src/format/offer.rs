//! Descriptions that the two sides exchange before memory moves.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::FormatError;
use super::geometry::Geometry;
use super::head::DESCRIPTION_BYTES_MAX;

/// Length of a session's secret, in bytes.
pub const SECRET_BYTES: usize = 32;

/// Length of the secret of a session's page digests, in bytes.
pub const DIGEST_SECRET_BYTES: usize = 64;

/// Most memory blocks, disks, CPU flags or arguments of an offer.
const LIST_MAX: usize = 4096;

const PAGE_BYTES: u64 = bindery_units::PAGE_BYTES as u64;

/// Name of one migration, drawn at random by its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigrationId(pub [u8; 16]);

/// Secret that both sides of a session know. Prints nothing of itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Makes one of its bytes.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if `other` is the same, in a time that says nothing about where they differ.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        constant_time_eq::constant_time_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// A memory block of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedBlock {
    /// Name that the VMM gives it, such as `pc.ram`.
    pub name: String,
    /// Length, in bytes: whole pages.
    pub bytes: u64,
}

/// A disk of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedDisk {
    /// Name that the VMM gives it.
    pub device: String,
    /// Path at the source.
    pub path: Vec<u8>,
    /// Format, such as `qcow2`.
    pub format: String,
    /// Length that the guest sees, in bytes.
    pub bytes: u64,
    /// True if its content moves too. Otherwise the destination must see the same file.
    pub is_copied: bool,
}

/// Processor that the guest sees, and how it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// Architecture, such as `x86_64`.
    pub architecture: String,
    /// Accelerator, such as `kvm` or `tcg`.
    pub accelerator: String,
    /// Vendor of the host's processor.
    pub vendor: String,
    /// Features that the guest may use, by the kernel's names.
    pub flags: Vec<String>,
}

/// The VMM that runs the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedVmm {
    /// Kind, such as `qemu`.
    pub kind: String,
    /// Version: major, minor, patch.
    pub version: (u32, u32, u32),
    /// Type of machine, such as `pc-i440fx-10.0`; empty where the VMM has none.
    pub machine: String,
    /// Kind of device state, such as `xen-save-devices-state`.
    pub device_state: String,
    /// Arguments that it was started with, the program first.
    pub arguments: Vec<Vec<u8>>,
}

/// Guest that a source offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Name of this migration.
    pub id: MigrationId,
    /// Name of the guest.
    pub guest: String,
    /// Identity of the guest, or zeros.
    pub uuid: [u8; 16],
    /// Domain that the guest's pages may be shared in.
    pub domain: String,
    /// Memory blocks, in the order in which the VMM made them.
    pub blocks: Vec<OfferedBlock>,
    /// Bytes of memory that are not zero now, about.
    pub used_bytes: u64,
    /// The VMM.
    pub vmm: OfferedVmm,
    /// The processor.
    pub processor: Processor,
    /// Disks.
    pub disks: Vec<OfferedDisk>,
    /// Number of connections that are wanted, with the first.
    pub streams: u16,
    /// Secret of page digests.
    pub digest_secret: Secret,
}

impl Offer {
    /// Returns the sizes of its memory blocks.
    ///
    /// # Errors
    /// [`FormatError::Impossible`] for blocks that are not whole pages, or have more than page indices reach.
    pub fn geometry(&self) -> Result<Geometry, FormatError> {
        let pages = |block: &OfferedBlock| {
            let is_whole = block.bytes.is_multiple_of(PAGE_BYTES) && block.bytes > 0;
            let pages = u32::try_from(block.bytes / PAGE_BYTES).ok().filter(|_| is_whole);
            pages.ok_or(FormatError::impossible("offer", "a memory block has no possible size"))
        };
        self.blocks.iter().map(pages).collect::<Result<_, _>>().map(Geometry::new)
    }
}

/// Consent of a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Secret by which further connections join.
    pub secret: Secret,
    /// Number of connections that are allowed, with the first: at most as many as were wanted.
    pub streams: u16,
    /// True if the destination has pages that are worth asking for by digest.
    pub has_pages: bool,
}

/// Kind of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalKind {
    /// The destination's policy does not allow the peer or its guest.
    Policy,
    /// The machine at the other end cannot run the guest.
    Incompatible,
    /// A guest of that name is there.
    NameTaken,
    /// Memory is lacking.
    Memory,
    /// A disk is missing.
    Disk,
    /// Somebody cancelled.
    Cancelled,
    /// Something failed.
    Failed,
}

/// Refusal, or end of a migration, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Kind.
    pub kind: RefusalKind,
    /// Reasons and remedies, in words.
    pub reason: String,
}

/// First frame of a further connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Secret of the session.
    pub secret: Secret,
    /// Number of the stream, from 1.
    pub stream: u16,
}

/// Description that is a frame's body.
pub(crate) trait Description: Serialize + DeserializeOwned {
    const NAME: &'static str;

    /// Refuses what decodes and is impossible.
    fn check(&self) -> Result<(), FormatError> {
        Ok(())
    }

    fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let bytes = postcard::to_stdvec(self).ok().filter(|it| it.len() <= DESCRIPTION_BYTES_MAX);
        bytes.ok_or(FormatError::impossible(Self::NAME, "it is longer than 1 MiB"))
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        match postcard::take_from_bytes(bytes) {
            Ok((decoded, [])) => Self::check(&decoded).map(|()| decoded),
            _ => Err(FormatError::impossible(Self::NAME, "its fields are not those of its kind")),
        }
    }
}

impl Description for Offer {
    const NAME: &'static str = "offer";

    fn check(&self) -> Result<(), FormatError> {
        let lists = [
            self.blocks.len(),
            self.disks.len(),
            self.vmm.arguments.len(),
            self.processor.flags.len(),
        ];
        if lists.iter().any(|length| *length > LIST_MAX) {
            return Err(FormatError::impossible("offer", "a list has more than 4096 entries"));
        }
        if self.streams == 0 || self.digest_secret.bytes().len() != DIGEST_SECRET_BYTES {
            return Err(FormatError::impossible(
                "offer",
                "it has no streams, or a secret of another length",
            ));
        }
        let mut names: Vec<_> = self.blocks.iter().map(|block| &block.name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(FormatError::impossible("offer", "two memory blocks have one name"));
        }
        self.geometry().map(drop)
    }
}
impl Description for Accepted {
    const NAME: &'static str = "consent";
}
impl Description for Refusal {
    const NAME: &'static str = "refusal";
}
impl Description for Join {
    const NAME: &'static str = "join";
}
