//! A Bloom filter: says of most keys that a table does not have that it has them not.
//!
//! Kirsch and Mitzenmacher, "Less hashing, same performance" (ESA 2006): two hashes serve for all
//! probes.

/// Bits for each key, and probes: one key in a hundred is said to be there wrongly.
const BITS_PER_KEY: usize = 10;
const PROBES: u64 = 7;

/// Two independent hashes of a key. Stored with tables, so it may never change.
fn hashes(key: &[u8]) -> (u64, u64) {
    // FNV-1a, then the finalizer of SplitMix64, which spreads what FNV leaves in the low bits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in key {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mix = |mut hash: u64| {
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    };
    (mix(hash), mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15)) | 1)
}

fn probes(key: &[u8], bits: u64) -> impl Iterator<Item = (usize, u8)> {
    let (first, second) = hashes(key);
    (0..PROBES).map(move |probe| {
        let bit = first.wrapping_add(probe.wrapping_mul(second)) % bits;
        ((bit / 8) as usize, 1 << (bit % 8))
    })
}

/// The filter of some keys.
pub(crate) fn build<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut filter = vec![0_u8; (keys.len() * BITS_PER_KEY).div_ceil(8).max(8)];
    let bits = filter.len() as u64 * 8;
    for key in keys {
        probes(key, bits).for_each(|(byte, bit)| filter[byte] |= bit);
    }
    filter
}

/// Whether `key` may be among the keys of a filter of so many bytes, which are asked for one by one.
pub(crate) fn may_have(filter_bytes: usize, byte_at: impl Fn(usize) -> u8, key: &[u8]) -> bool {
    let bits = filter_bytes as u64 * 8;
    bits == 0 || probes(key, bits).all(|(byte, bit)| byte_at(byte) & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_denies_a_key_and_seldom_invents_one() {
        let keys: Vec<[u8; 8]> = (0..10_000_u64).map(u64::to_be_bytes).collect();
        let filter = build(keys.iter().map(<[u8; 8]>::as_slice));
        let may_have = |key: &[u8]| may_have(filter.len(), |at| filter[at], key);
        assert!(keys.iter().all(|key| may_have(key)));
        let invented = (10_000..110_000_u64).filter(|key| may_have(&key.to_be_bytes())).count();
        assert!(invented < 2_000, "{invented} of 100000 keys are invented");
    }
}
