//! `bindery-bench page`: the kernels over one page, form by form, beside what else could be used.
//!
//! Each operation is measured over pages that fit the L2 cache and over pages that fit no cache.
//! The first row of each table is `memcpy`, the bound: a kernel cannot ask less of memory than to
//! read it. Kernels over pointers (`…_at`) are the ones that scan guests; the memory is not written
//! while they run, so that all contenders must agree on what they saw.

use std::fmt;
use std::hint::black_box;
use std::mem::MaybeUninit;

use aegis::aegis128l::Aegis128LMac;
use aegis::aegis128x4::Aegis128X4Mac;
use aegis::aegis256x4::Aegis256X4Mac;
use anyhow::{Result, ensure};
use bindery_page::{Digest, DigestKey, Examined, Form, PAGE_BYTES};
use highway::HighwayHash;
use serde::Serialize;

use crate::harness::{Contender, Measured, SampleSet, Table, interleave};

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
    /// Pages of the working set that is to fit the L2 cache and not L1.
    pub cached_pages: usize,
    /// Pages of the working set that is to fit no cache. Up to twice this memory is allocated.
    pub uncached_pages: usize,
}

impl Default for Options {
    /// Nine rounds over 256 KiB and over 256 MiB.
    fn default() -> Self {
        Self { rounds: 9, cached_pages: 64, uncached_pages: 64 << 10 }
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The form that Bindery uses on this machine.
    pub active_form: &'static str,
    /// One entry for each operation and working set.
    pub comparisons: Vec<Comparison>,
}

/// One operation over one working set.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The kernel that is asked.
    pub operation: &'static str,
    /// Where the pages lie: `L2` or `DRAM`.
    pub memory: &'static str,
    /// Bytes in the working set, of each operand.
    pub bytes: usize,
    /// The contenders' samples, the bound first.
    pub contenders: Vec<SampleSet>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "active form: {}", self.active_form)?;
        for comparison in &self.comparisons {
            let Comparison { operation, memory, bytes, contenders } = comparison;
            let title = format!("{operation}, 4 KiB pages from {memory} ({} KiB)", bytes >> 10);
            write!(f, "\n{}", Table::of_samples(title, contenders, 0))?;
        }
        Ok(())
    }
}

/// Measures every operation over both working sets.
///
/// # Errors
/// If an option is zero, or if two contenders disagree about a page.
pub fn run(options: &Options) -> Result<Report> {
    let Options { rounds, cached_pages, uncached_pages } = *options;
    ensure!(rounds > 0, "--rounds must be at least 1");
    ensure!(cached_pages > 0 && uncached_pages > 0, "a working set needs at least one page");
    let mut comparisons = Vec::new();
    for (memory, count) in [("L2", cached_pages), ("DRAM", uncached_pages)] {
        // Enough passes over a small set for a clock of tens of nanoseconds not to matter.
        let passes = (8192 / count).max(1);
        let mut add = |operation, contenders: Vec<Work<'_>>| -> Result<()> {
            let title = format!("{operation}, {memory}");
            let contenders = compete(&title, rounds, contenders)?;
            let bytes = count * PAGE_BYTES;
            comparisons.push(Comparison { operation, memory, bytes, contenders });
            Ok(())
        };
        let zeroes = pages(count, |_| 0);
        let zero = Set { pages: &zeroes, passes };
        add("is_zero", zero_contenders(&zero))?;
        add("examine (zero pages)", examine_contenders(&zero))?;
        drop(zeroes);
        let contents = pages(count, splitmix64);
        let content = Set { pages: &contents, passes };
        add("digest", digest_contenders(&content))?;
        add("examine (content)", examine_contenders(&content))?;
        let twins = pages(count, splitmix64);
        add("equal", equal_contenders(&content, &twins))?;
    }
    Ok(Report { active_form: Form::active().name(), comparisons })
}

/// A page as a mapping has it.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Pages to work on, and how often to go over them in one run.
#[derive(Clone, Copy)]
struct Set<'a> {
    pages: &'a [Page],
    passes: usize,
}

/// Pages whose every word is `word_at` its position. Zeroes are written like any other word, so
/// that no page is the kernel's one zero page, which would be in a cache.
fn pages(count: usize, word_at: impl Fn(u64) -> u64) -> Vec<Page> {
    let mut pages = vec![Page([0xff; PAGE_BYTES]); count];
    let words = pages.iter_mut().flat_map(|page| page.0.chunks_exact_mut(8));
    for (position, word) in (0..).zip(words) {
        word.copy_from_slice(&word_at(position).to_le_bytes());
    }
    pages
}

/// A word that looks random: the finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
fn splitmix64(position: u64) -> u64 {
    let mut word = position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A contender that owns its work.
struct Work<'a> {
    name: String,
    run: Box<dyn FnMut() -> Measured + 'a>,
}

impl<'a> Work<'a> {
    /// Asks `question` of every page of `set`; all contenders must get the same answers.
    fn checked(name: &str, set: &Set<'a>, question: impl Fn(&Page) -> u64 + 'a) -> Self {
        let Set { pages, passes } = *set;
        let run = move || {
            Measured::time_per_item("ns/page", (pages.len() * passes) as u64, || {
                let mut check = 0_u64;
                for _ in 0..passes {
                    for page in black_box(pages) {
                        check = check.rotate_left(1).wrapping_add(question(black_box(page)));
                    }
                }
                check
            })
        };
        Self { name: name.to_owned(), run: Box::new(run) }
    }

    /// The same, for a contender whose answers are its own (another digest) or none (a copy).
    fn unchecked(name: &str, set: &Set<'a>, question: impl Fn(&Page) -> u64 + 'a) -> Self {
        let mut checked = Self::checked(name, set, question);
        Self { name: checked.name, run: Box::new(move || (checked.run)().unchecked()) }
    }

    /// The bound: copies every page to one place that stays in L1.
    fn memcpy(set: &Set<'a>) -> Self {
        Self::unchecked("memcpy", set, |page| {
            let mut copy = MaybeUninit::<Page>::uninit();
            // A reference to the copy escapes, so that it is made.
            black_box(copy.write(page.clone()));
            0
        })
    }
}

fn compete(title: &str, rounds: usize, mut works: Vec<Work<'_>>) -> Result<Vec<SampleSet>> {
    let mut contenders: Vec<_> =
        works.iter_mut().map(|work| Contender::new(&work.name, &mut *work.run)).collect();
    interleave(title, rounds, &mut contenders)
}

fn zero_contenders<'a>(set: &Set<'a>) -> Vec<Work<'a>> {
    let mut works = vec![
        Work::memcpy(set),
        Work::checked("naive loop", set, |page| u64::from(naive_is_zero(&page.0))),
        Work::checked("slice == zeroes", set, |page| {
            static ZEROES: Page = Page([0; PAGE_BYTES]);
            u64::from(page.0[..] == ZEROES.0[..])
        }),
        Work::checked("libc memcmp with itself, one on", set, |page| {
            let (first, rest) = (&page.0[..PAGE_BYTES - 1], &page.0[1..]);
            u64::from(page.0[0] == 0 && libc_equal(first, rest))
        }),
    ];
    works.extend(Form::available().map(|form| {
        Work::checked(&format!("is_zero_at {}", form.name()), set, |page| {
            // SAFETY: the page is borrowed, so readable, and aligned to 4096.
            u64::from(unsafe { form.is_zero_at(page.0.as_ptr()) })
        })
    }));
    works
}

fn equal_contenders<'a>(set: &Set<'a>, twins: &'a [Page]) -> Vec<Work<'a>> {
    let first = set.pages.as_ptr().addr();
    let twin_of = move |page: &Page| &twins[((&raw const *page).addr() - first) / PAGE_BYTES].0;
    let mut works = vec![
        Work::memcpy(set),
        Work::checked("naive loop", set, move |page| {
            u64::from(naive_equal(&page.0, twin_of(page)))
        }),
        Work::checked("slice ==", set, move |page| u64::from(page.0[..] == twin_of(page)[..])),
        Work::checked("libc memcmp", set, move |page| {
            u64::from(libc_equal(&page.0, twin_of(page)))
        }),
    ];
    works.extend(Form::available().map(|form| {
        Work::checked(&format!("equal_at {}", form.name()), set, move |page| {
            // SAFETY: both pages are borrowed, so readable, and aligned to 4096.
            u64::from(unsafe { form.equal_at(page.0.as_ptr(), twin_of(page).as_ptr()) })
        })
    }));
    works
}

const SECRET: [u8; 32] = *b"a secret that protects no guest.";

fn digest_contenders<'a>(set: &Set<'a>) -> Vec<Work<'a>> {
    let key = DigestKey::from_secret(&SECRET);
    let mut works = vec![Work::memcpy(set)];
    works.extend(Form::available().map(|form| {
        let key = key.clone();
        Work::checked(&format!("digest_at {}", form.name()), set, move |page| {
            // SAFETY: the page is borrowed, so readable, and aligned to 4096.
            fold(unsafe { form.digest_at(page.0.as_ptr(), &key) })
        })
    }));
    works.push(Work::checked("digest (no copy)", set, move |page| {
        fold(bindery_page::digest(&page.0, &key))
    }));
    works.extend(rival_digests(set));
    works
}

/// Other keyed digests of 128 bits, each as its library wants to be used.
fn rival_digests<'a>(set: &Set<'a>) -> Vec<Work<'a>> {
    let half: [u8; 16] = std::array::from_fn(|byte| SECRET[byte]);
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| SECRET[at * 8 + byte]));
    let highway_key = highway::Key([word(0), word(1), word(2), word(3)]);
    let xxh3_secret: [u8; 192] = std::array::from_fn(|at| splitmix64(word(at % 4)) as u8);
    let aegis_128l = Aegis128LMac::<16>::new_with_nonce(&half, &half);
    let aegis_128x4 = Aegis128X4Mac::<16>::new_with_nonce(&half, &half);
    let aegis_256x4 = Aegis256X4Mac::<16>::new_with_nonce(&SECRET, &SECRET);
    vec![
        Work::unchecked("AEGIS-128L MAC", set, move |page| {
            let mut mac = aegis_128l.clone();
            mac.update(&page.0);
            fold(Digest::from_bytes(mac.finalize()))
        }),
        Work::unchecked("AEGIS-128X4 MAC", set, move |page| {
            let mut mac = aegis_128x4.clone();
            mac.update(&page.0);
            fold(Digest::from_bytes(mac.finalize()))
        }),
        Work::unchecked("AEGIS-256X4 MAC", set, move |page| {
            let mut mac = aegis_256x4.clone();
            mac.update(&page.0);
            fold(Digest::from_bytes(mac.finalize()))
        }),
        Work::unchecked("XXH3-128 with secret (no MAC)", set, move |page| {
            twox_hash::XxHash3_128::oneshot_with_secret(&xxh3_secret, &page.0)
                .map_or(0, |hash| hash as u64)
        }),
        Work::unchecked("HighwayHash-128", set, move |page| {
            highway::HighwayHasher::new(highway_key).hash128(&page.0)[0]
        }),
        Work::unchecked("BLAKE3 keyed", set, |page| {
            u64::from(blake3::keyed_hash(&SECRET, &page.0).as_bytes()[0])
        }),
    ]
}

fn examine_contenders<'a>(set: &Set<'a>) -> Vec<Work<'a>> {
    let key = DigestKey::from_secret(&SECRET);
    let mut works = vec![Work::memcpy(set)];
    works.extend(Form::available().map(|form| {
        let key = key.clone();
        Work::checked(&format!("examine_at {}", form.name()), set, move |page| {
            let (page, next) = (page.0.as_ptr(), page.0.as_ptr().wrapping_add(PAGE_BYTES));
            // SAFETY: the page is borrowed, so readable, and aligned to 4096.
            answer(unsafe { form.examine_at(page, next, &key) })
        })
    }));
    let owned_key = key.clone();
    works.push(Work::checked("examine (no copy)", set, move |page| {
        answer(bindery_page::examine(&page.0, &owned_key))
    }));
    works.push(Work::checked("naive loop, then digest", set, move |page| {
        answer(match naive_is_zero(&page.0) {
            true => Examined::Zero,
            false => Examined::Content(bindery_page::digest(&page.0, &key)),
        })
    }));
    works
}

fn answer(examined: Examined) -> u64 {
    match examined {
        Examined::Zero => 0,
        Examined::Content(digest) => fold(digest),
    }
}

fn fold(digest: Digest) -> u64 {
    let [high, low] = digest.to_words();
    high ^ low
}

/// What a compiler makes of the plain question.
fn naive_is_zero(page: &[u8; PAGE_BYTES]) -> bool {
    page.iter().all(|&byte| byte == 0)
}

/// What a compiler makes of the plain question.
fn naive_equal(a: &[u8; PAGE_BYTES], b: &[u8; PAGE_BYTES]) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b)
}

fn libc_equal(a: &[u8], b: &[u8]) -> bool {
    assert_eq!(a.len(), b.len(), "memcmp compares as many bytes of both");
    // SAFETY: both slices are readable for `a.len()` bytes.
    unsafe { libc::memcmp(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest run: that all contenders agree is what `run` checks.
    #[test]
    fn contenders_agree() {
        let report = run(&Options { rounds: 1, cached_pages: 3, uncached_pages: 5 }).unwrap();
        assert_eq!(report.comparisons.len(), 10);
        let text = report.to_string();
        assert!(text.contains("digest_at portable") && text.contains("libc memcmp"), "{text}");
    }

    #[test]
    fn working_sets_must_not_be_empty() {
        let refusal = run(&Options { rounds: 1, cached_pages: 0, uncached_pages: 1 });
        assert!(refusal.unwrap_err().to_string().contains("at least one page"));
    }
}
