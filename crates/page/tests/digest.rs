//! What a digest must be: one value on every machine, keyed, and dependent on every bit.

use std::collections::HashSet;

use bindery_page::{Digest, DigestKey, PAGE_BYTES, digest};

fn counting_key() -> DigestKey {
    DigestKey::from_secret(&std::array::from_fn(|at| at as u8))
}

fn page_of(byte_at: impl Fn(usize) -> u8) -> [u8; PAGE_BYTES] {
    std::array::from_fn(byte_at)
}

fn bits_apart(a: Digest, b: Digest) -> u32 {
    a.to_words().iter().zip(b.to_words()).map(|(a, b)| (a ^ b).count_ones()).sum()
}

/// The library picks its instructions at run time. These values were computed once, with VAES;
/// a machine that finds others would not recognise digests made elsewhere.
#[test]
fn digests_are_the_same_on_every_machine() {
    let key = counting_key();
    let pages = [page_of(|_| 0), page_of(|_| 0xff), page_of(|at| (at * 7 + at / 256) as u8)];
    let expected = [
        "05e4190d630e2ca717d3a23208116885",
        "e59333a7f491ad5442da80add950b9f7",
        "7283291e63bf33232f6d3ad77fae65d8",
    ];
    assert_eq!(pages.map(|page| format!("{:?}", digest(&page, &key))), expected);
}

#[test]
fn digests_depend_on_every_bit_of_the_key() {
    let page = page_of(|at| at as u8);
    let secret: [u8; 32] = std::array::from_fn(|at| at as u8);
    let under = |secret: &[u8; 32]| digest(&page, &DigestKey::from_secret(secret));
    let mut seen = HashSet::from([under(&secret)]);
    for bit in 0..256 {
        let mut other = secret;
        other[bit / 8] ^= 1 << (bit % 8);
        let digest = under(&other);
        assert!(seen.insert(digest), "bit {bit} of the key changes nothing");
        let apart = bits_apart(digest, under(&secret));
        assert!((32..=96).contains(&apart), "bit {bit} of the key moves {apart} of 128 bits");
    }
}

#[test]
fn generated_keys_differ_and_copies_agree() {
    let page = page_of(|at| at as u8);
    let (a, b) = (DigestKey::generate().unwrap(), DigestKey::generate().unwrap());
    assert_ne!(digest(&page, &a), digest(&page, &b));
    assert_eq!(digest(&page, &a), digest(&page, &a.clone()));
}

/// One bit of the page moves about half of the digest's bits, wherever it is; the bounds are eight
/// standard deviations from the mean of each page, and far from what a weak mixer gives.
#[test]
fn digests_avalanche_from_every_byte() {
    let key = counting_key();
    let mut page = page_of(|at| (at ^ at >> 5) as u8);
    let base = digest(&page, &key);
    let mut moved = 0;
    for offset in 0..PAGE_BYTES {
        let bit = 1 << (offset % 8);
        page[offset] ^= bit;
        let apart = bits_apart(base, digest(&page, &key));
        page[offset] ^= bit;
        assert!((19..=109).contains(&apart), "offset {offset} moves {apart} of 128 bits");
        moved += u64::from(apart);
    }
    let mean = moved as f64 / PAGE_BYTES as f64;
    assert!((63.0..65.0).contains(&mean), "on average {mean} of 128 bits move");
}

#[test]
fn pages_that_differ_in_one_bit_never_collide() {
    let key = counting_key();
    let mut seen = HashSet::new();
    let mut page = page_of(|_| 0);
    assert!(seen.insert(digest(&page, &key)));
    for offset in 0..PAGE_BYTES {
        for bit in 0..8 {
            page[offset] = 1 << bit;
            assert!(seen.insert(digest(&page, &key)), "bit {bit} at {offset} collides");
        }
        page[offset] = 0;
    }
}

#[test]
fn words_order_as_digests_do() {
    let low = Digest::from_bytes([0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0, 0, 0, 0, 0]);
    let high = Digest::from_bytes([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(low < high);
    assert_eq!(low.to_words(), [1, 0xff << 56]);
    assert!(low.to_words() < high.to_words());
    assert_eq!(Digest::from_bytes(low.to_bytes()), low);
}

#[test]
fn keys_print_nothing_of_themselves() {
    assert_eq!(format!("{:?}", counting_key()), "DigestKey { .. }");
}
