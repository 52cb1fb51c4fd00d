//! Keyed digest of 256 bits by which known pages are found: decision 0026. Two pages of one digest are one page.

pub(crate) use bindery_page::{
    KEYED_DIGEST_BYTES as DIGEST_BYTES, KEYED_SECRET_BYTES as SECRET_BYTES,
    KeyedDigest as PageDigest, KeyedDigestKey as PageDigestKey,
};
