//! Every form of every kernel against the naive one.

use bindery_page::{DigestKey, Examined, Form, PAGE_BYTES, VECTOR_ALIGN};
use proptest::prelude::*;

type Page = [u8; PAGE_BYTES];

/// A page as a mapping has it.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
struct Aligned(Page);

fn key() -> DigestKey {
    DigestKey::from_secret(&std::array::from_fn(|at| at as u8))
}

/// Bytes that are neither zero nor regular.
fn noise() -> Aligned {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    Aligned(std::array::from_fn(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    }))
}

fn naive_is_zero(page: &Page) -> bool {
    page.iter().all(|&byte| byte == 0)
}

fn naive_equal(a: &Page, b: &Page) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b)
}

fn naive_examine(page: &Page) -> Examined {
    match naive_is_zero(page) {
        true => Examined::Zero,
        false => Examined::Content(bindery_page::digest(page, &key())),
    }
}

/// Asks `form` everything about `a` and `b`, over references and over pointers.
fn check_pair(form: &Form, a: &Aligned, b: &Aligned, context: &dyn std::fmt::Display) {
    let key = key();
    let form_name = form.name();
    for page in [a, b] {
        let is_zero = naive_is_zero(&page.0);
        let examined = naive_examine(&page.0);
        let digest = bindery_page::digest(&page.0, &key);
        assert_eq!(form.is_zero(&page.0), is_zero, "{form_name} is_zero {context}");
        assert_eq!(form.examine(&page.0, &key), examined, "{form_name} examine {context}");
        let at = page.0.as_ptr();
        // SAFETY: the page is borrowed, so readable and not written, and aligned to 4096.
        unsafe {
            assert_eq!(form.is_zero_at(at), is_zero, "{form_name} is_zero_at {context}");
            assert_eq!(form.digest_at(at, &key), digest, "{form_name} digest_at {context}");
            let examined_at = form.examine_at(at, b.0.as_ptr(), &key);
            assert_eq!(examined_at, examined, "{form_name} examine_at {context}");
        }
    }
    let equal = naive_equal(&a.0, &b.0);
    assert_eq!(form.equal(&a.0, &b.0), equal, "{form_name} equal {context}");
    // SAFETY: as above, for both pages.
    let equal_at = unsafe { form.equal_at(a.0.as_ptr(), b.0.as_ptr()) };
    assert_eq!(equal_at, equal, "{form_name} equal_at {context}");
}

#[test]
fn the_forms_of_this_machine_are_named() {
    let names: Vec<_> = Form::available().map(Form::name).collect();
    println!("forms here: {names:?}, active: {}", Form::active().name());
    assert_eq!(names.last(), Some(&"portable"));
    assert!(names.contains(&Form::active().name()));
    for (name, present) in expected_forms() {
        if present {
            assert!(names.contains(&name), "{name} is missing from {names:?}");
        } else {
            bindery_testkit::skipped!("form {name} cannot run on this machine");
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn expected_forms() -> Vec<(&'static str, bool)> {
    let avx512 = std::arch::is_x86_feature_detected!("avx512f");
    vec![("avx512", avx512), ("avx2", std::arch::is_x86_feature_detected!("avx2"))]
}

#[cfg(target_arch = "aarch64")]
fn expected_forms() -> Vec<(&'static str, bool)> {
    vec![("neon", true)]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn expected_forms() -> Vec<(&'static str, bool)> {
    vec![]
}

#[test]
fn one_bit_set_at_any_offset_is_seen() {
    let zero = Aligned([0; PAGE_BYTES]);
    for form in Form::available() {
        check_pair(form, &zero, &zero.clone(), &"without a difference");
        for offset in 0..PAGE_BYTES {
            let mut other = zero.clone();
            other.0[offset] = 1 << (offset % 8);
            check_pair(form, &zero, &other, &format_args!("at {offset}"));
        }
    }
}

#[test]
fn one_bit_changed_at_any_offset_is_seen() {
    let page = noise();
    for form in Form::available() {
        check_pair(form, &page, &page.clone(), &"without a difference");
        for offset in 0..PAGE_BYTES {
            let mut other = page.clone();
            other.0[offset] ^= 0x80 >> (offset % 8);
            check_pair(form, &page, &other, &format_args!("at {offset}"));
        }
    }
}

/// Two differences that cancel out if blocks are summed rather than united.
#[test]
fn differences_do_not_cancel() {
    let page = noise();
    for form in Form::available() {
        for distance in [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048] {
            for first in [0, 7, 500, 2047] {
                let mut other = page.clone();
                other.0[first] ^= 0xff;
                other.0[first + distance] ^= 0xff;
                check_pair(form, &page, &other, &format_args!("at {first} and {distance} on"));
                let mut twice = Aligned([0; PAGE_BYTES]);
                (twice.0[first], twice.0[first + distance]) = (0x80, 0x80);
                check_pair(form, &twice, &page, &format_args!("at {first} and {distance} on"));
            }
        }
    }
}

/// A page at every place of a cache line within a larger buffer, whose other bytes would spoil
/// the answer if they were read.
#[test]
fn references_may_have_any_alignment() {
    let content = noise();
    let key = key();
    for misaligned in 0..=VECTOR_ALIGN {
        for other_misaligned in [0, 1, misaligned] {
            let (mut a, mut b) = (vec![0xa5; 2 * PAGE_BYTES], vec![0x5a; 2 * PAGE_BYTES]);
            let a = place(&mut a, misaligned);
            let b = place(&mut b, other_misaligned);
            for form in Form::available() {
                *a = [0; PAGE_BYTES];
                assert!(form.is_zero(a), "{} at {misaligned}", form.name());
                assert_eq!(form.examine(a, &key), Examined::Zero);
                (*a, *b) = (content.0, content.0);
                assert!(form.equal(a, b), "{} at {misaligned}, {other_misaligned}", form.name());
                assert_eq!(form.examine(a, &key), naive_examine(&content.0));
                for offset in [0, 1, 63, 64, PAGE_BYTES / 2, PAGE_BYTES - 64, PAGE_BYTES - 1] {
                    a[offset] ^= 1;
                    assert!(!form.equal(a, b), "{} at {misaligned}, {offset}", form.name());
                    a[offset] ^= 1;
                }
            }
        }
    }
}

/// The page that starts `misaligned` bytes after an aligned address of `buffer`.
fn place(buffer: &mut [u8], misaligned: usize) -> &mut Page {
    let start = buffer.as_ptr().align_offset(VECTOR_ALIGN) + misaligned;
    buffer[start..].first_chunk_mut().expect("the buffer is two pages long")
}

/// Pointers need not be aligned to a page, only to the widest vector.
#[test]
fn pointers_may_be_aligned_to_the_vector_alone() {
    let content = noise();
    let key = key();
    let mut buffer = vec![0xa5; 3 * PAGE_BYTES];
    for shift in (0..PAGE_BYTES).step_by(VECTOR_ALIGN) {
        let page = place(&mut buffer, shift);
        *page = content.0;
        for form in Form::available() {
            // SAFETY: the page is borrowed, and was placed at a multiple of VECTOR_ALIGN.
            unsafe {
                let examined = form.examine_at(page.as_ptr(), page.as_ptr(), &key);
                assert_eq!(examined, naive_examine(&content.0));
                assert!(form.equal_at(page.as_ptr(), content.0.as_ptr()));
                assert!(!form.is_zero_at(page.as_ptr()));
            }
        }
    }
}

/// Few distinct bytes, long runs of them, and zero more often than not: the pages on which a
/// kernel that looks at the wrong place goes wrong.
fn page_of_runs() -> impl Strategy<Value = Aligned> {
    let run = (prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 1..1024_usize);
    prop::collection::vec(run, 0..12).prop_map(|runs| {
        let mut page = Aligned([0; PAGE_BYTES]);
        let bytes = runs.into_iter().flat_map(|(byte, count)| std::iter::repeat_n(byte, count));
        page.0.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        page
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 2))]

    #[test]
    fn all_forms_agree_with_the_naive_one(
        a in page_of_runs(),
        b in page_of_runs(),
        edits in prop::collection::vec((0..PAGE_BYTES, any::<u8>()), 0..3),
    ) {
        let mut edited = a.clone();
        for (offset, byte) in edits {
            edited.0[offset] = byte;
        }
        for form in Form::available() {
            check_pair(form, &a, &b, &"of runs");
            check_pair(form, &a, &edited, &"of edits");
        }
    }
}
