//! Ways to reach an archive.

use std::fmt;

use super::retry::Patience;

/// A text that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(secret)")
    }
}

/// Credentials of a user of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The name of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: Secret,
    /// Session token, for credentials that are lent.
    pub session_token: Option<Secret>,
}

/// Ways to reach an archive, and limits of time. What is `None` is taken from the variables that
/// other S3 clients know: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` and so on, then from
/// the role of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveOptions {
    /// The store's URL, where it is not AWS: `https://minio.example:9000`. `http://` is taken at its
    /// word; anybody on the way can then read the objects, though not change them unnoticed.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// Credentials to ask with.
    pub credentials: Option<Credentials>,
    /// Limits of time and of attempts.
    pub patience: Patience,
    /// Content of each part of an object but the last, in bytes; whole units. So much
    /// memory times [`parts_at_once`](Self::parts_at_once) is taken while an object is stored.
    pub part_bytes: u64,
    /// Number of parts that are on the way at once.
    pub parts_at_once: usize,
    /// True if all of an object is read back and verified before its place here is given away. Without it
    /// one small request a part shows that the part is there, has its length, and ends as it should.
    pub read_back: bool,
    /// Name of the writer, for people who find the objects: that of this machine.
    pub writer: String,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            credentials: None,
            patience: Patience::default(),
            part_bytes: 16 << 20,
            parts_at_once: 4,
            read_back: true,
            writer: host_name(),
        }
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".into(), |name| name.trim().to_owned())
}
