//! Little-endian numbers at fixed places of a structure.

macro_rules! numbers {
    ($($read:ident, $write:ident: $number:ty;)*) => {$(
        /// The number at `at`, which the structure has.
        pub(crate) fn $read(bytes: &[u8], at: usize) -> $number {
            let field = bytes[at..at + size_of::<$number>()].try_into();
            <$number>::from_le_bytes(field.expect("the slice is as long as the number"))
        }

        /// Puts a number at `at`, which the structure has.
        pub(crate) fn $write(bytes: &mut [u8], at: usize, number: $number) {
            bytes[at..at + size_of::<$number>()].copy_from_slice(&number.to_le_bytes());
        }
    )*};
}

numbers! {
    u16_at, put_u16: u16;
    u32_at, put_u32: u32;
    u64_at, put_u64: u64;
    u128_at, put_u128: u128;
}
