//! Keys of an archive: `<pool>/<object>` for the first part of an object, and
//! `<pool>/<object>.<part>` for the others.

use object_store::path::Path;
use uuid::Uuid;

use super::bucket::BucketMarker;
use crate::ObjectId;

/// Marker of an archive. Making it shows that the store creates conditionally.
pub(super) const MARKER: BucketMarker =
    BucketMarker { key: "bindery-archive", text: "bindery archive, format 1\n" };

/// Prefix of all keys of an archive.
#[derive(Clone, Debug)]
pub(super) struct Keys(pub(super) Path);

impl Keys {
    pub(super) fn marker(&self, marker: BucketMarker) -> Path {
        self.0.clone().join(marker.key)
    }

    pub(super) fn pool(&self, pool: Uuid) -> Path {
        self.0.clone().join(pool.to_string())
    }

    pub(super) fn part(&self, pool: Uuid, object: ObjectId, part: u32) -> Path {
        let name = match part {
            0 => format!("{:016x}", object.0),
            part => format!("{:016x}.{part:06}", object.0),
        };
        self.pool(pool).join(name)
    }

    /// Returns the object and the part of a key of a pool; none if no archive gives such names.
    pub(super) fn parse(&self, pool: Uuid, key: &Path) -> Option<(ObjectId, u32)> {
        let name = key.filename()?;
        let (object, part) = name.split_once('.').unwrap_or((name, "0"));
        let object = ObjectId(u64::from_str_radix(object, 16).ok()?);
        let part = part.parse().ok()?;
        // One spelling each: what is not spelt so was not written by us.
        (self.part(pool, object, part) == *key).then_some((object, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_and_strangers_are_none() {
        let keys = Keys(Path::from("a/b"));
        let pool = Uuid::from_u128(7);
        for (object, part) in [(0, 0), (1, 1), (u64::MAX, u32::MAX), (0xabc, 1_000_000)] {
            let key = keys.part(pool, ObjectId(object), part);
            assert_eq!(keys.parse(pool, &key), Some((ObjectId(object), part)), "{key}");
            assert_eq!(keys.parse(Uuid::from_u128(8), &key), None);
        }
        for name in ["1", "000000000000000g", "0000000000000001.1", "0000000000000001.000000", ""] {
            assert_eq!(keys.parse(pool, &keys.pool(pool).join(name)), None, "{name:?}");
        }
    }
}
