//! The root MDC of a pool: one record says that it is Bindery's, and every other begins with the number of
//! the client that wrote it, so that several clients may keep their records there.

use bindery_pool::log::WriteError;
use bindery_pool::{MediaClass, OpenMdc, Pool};

use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::seal::random;

/// Number of checkpoints among the clients of a root.
const CLIENT: u8 = 1;

const MAGIC: &[u8; 8] = b"BndrRoot";
const VERSION: u32 = 1;
const WHAT: &str = "root";

/// The root of a pool, open for writing.
#[derive(Debug)]
pub(crate) struct Root {
    mdc: OpenMdc,
    /// Drawn at random when the root was made. Objects of ours carry it.
    id: u128,
    /// Records of other clients, as they are.
    others: Vec<Vec<u8>>,
    /// True once a device has failed: nobody knows what the root holds until it is opened again.
    has_failed: bool,
}

impl Root {
    /// Opens the root of a pool, or makes it. Returns the records of checkpoints, too. Blocks.
    pub(crate) fn open(
        pool: &Pool,
        class: MediaClass,
        log_bytes: u64,
    ) -> Result<(Self, Vec<Vec<u8>>), CheckpointError> {
        let mdc = match pool.root() {
            Some(root) => pool.open_mdc(root)?,
            None => pool.create_root(class, log_bytes, 2)?,
        };
        let mut records = mdc.records().collect::<Result<Vec<_>, _>>()?.into_iter();
        let Some(first) = records.next() else { return Self::begin(mdc) };
        let id = decode_first(&first)?;
        let (ours, others): (Vec<_>, Vec<_>) =
            records.partition(|record| record.first() == Some(&CLIENT));
        let ours = ours.into_iter().map(|record| record[1..].to_vec()).collect();
        Ok((Self { mdc, id, others, has_failed: false }, ours))
    }

    /// Writes the first record of a root that has none: it is new, or a crash came before this one.
    fn begin(mdc: OpenMdc) -> Result<(Self, Vec<Vec<u8>>), CheckpointError> {
        let id = u128::from_le_bytes(random()?);
        let mut root = Self { mdc, id, others: Vec::new(), has_failed: false };
        root.mdc.append(&encode_first(root.id))?;
        root.mdc.sync()?;
        Ok((root, Vec::new()))
    }

    /// Returns the id, which objects of ours carry.
    pub(crate) const fn id(&self) -> u128 {
        self.id
    }

    /// Makes a record durable. Where it does not fit, the records that `live` gives, which come to the same
    /// with it, take the place of all. Blocks for a sync.
    pub(crate) fn append(
        &mut self,
        record: &[u8],
        live: impl FnOnce() -> Result<Vec<Vec<u8>>, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        if self.has_failed {
            return Err(WriteError::Failed(self.mdc.id()).into());
        }
        let appended = match self.mdc.append(&[&[CLIENT], record].concat()) {
            Err(WriteError::Full { .. }) => self.compact(&live()?),
            Err(error) => Err(error),
            Ok(()) => self.mdc.sync(),
        };
        self.has_failed = appended.as_ref().is_err_and(|error| !is_full(error));
        appended.map_err(|error| match error {
            WriteError::Full { .. } => CheckpointError::RootFull(error),
            error => error.into(),
        })
    }

    fn compact(&mut self, live: &[Vec<u8>]) -> Result<(), WriteError> {
        let (first, others) = (encode_first(self.id), &self.others);
        self.mdc.compact(|compaction| {
            compaction.append(&first)?;
            others.iter().try_for_each(|record| compaction.append(record))?;
            live.iter().try_for_each(|record| compaction.append(&[&[CLIENT], &record[..]].concat()))
        })
    }
}

const fn is_full(error: &WriteError) -> bool {
    matches!(error, WriteError::Full { .. })
}

fn encode_first(id: u128) -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &id.to_le_bytes()].concat()
}

fn decode_first(record: &[u8]) -> Result<u128, CheckpointError> {
    let mut fields = Fields::new(WHAT, record);
    if fields.array::<8>().ok().as_ref() != Some(MAGIC) {
        return Err(CheckpointError::ForeignRoot);
    }
    let decode = |mut fields: Fields<'_>| {
        let found = fields.u32()?;
        if found != VERSION {
            return Err(FormatError::Newer { what: WHAT, found, known: VERSION });
        }
        let id = fields.u128()?;
        fields.end().map(|()| id)
    };
    decode(fields).map_err(CheckpointError::Record)
}
