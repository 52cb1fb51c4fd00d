//! What a store must do to be measured.

use crate::record::{KEY_BYTES, VALUE_BYTES};

/// Whatever went wrong in a store.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A store of keys and values, used by any number of threads.
pub trait Store: Send + Sync {
    /// Takes the records that it begins with, in the order of their keys, and keeps them.
    ///
    /// # Errors
    /// The store's.
    fn fill(
        &self,
        records: &mut dyn Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])>,
    ) -> Result<(), BoxError>;

    /// Reads a value into `value`; whether there is one. Everything of it is copied: who asks for a
    /// record wants it.
    ///
    /// # Errors
    /// The store's.
    fn read(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> Result<bool, BoxError>;

    /// Puts a value in place of another. It need not survive a crash of the machine at once, as with
    /// the defaults of YCSB's bindings. The thread that put it finds it from now on.
    ///
    /// # Errors
    /// The store's.
    fn put(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> Result<(), BoxError>;

    /// Ends what runs in the background and makes everything durable.
    ///
    /// # Errors
    /// The store's.
    fn settle(&self) -> Result<(), BoxError>;
}
