//! Random writes to a memory, encoded, decoded into another: both are equal after each round.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use bindery_migration::encode::{Answers, EncodeOptions, Encoder, Outlet};
use bindery_migration::format::{Chunk, Frame, Geometry};
use bindery_migration::receive::{Applied, Applier, FrameReader, ReceiveError, Rounds, Target};
use bindery_page::{KeyedDigest, KeyedDigestKey};
use bindery_transfer::Sink;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use proptest::prelude::*;

const SECRET: [u8; 64] = [7; 64];

/// Memory of two blocks, one of which ends within a row.
const PAGES: [u32; 2] = [700, 65];

type Page = [u8; PAGE_BYTES];

#[derive(Clone, PartialEq, Eq)]
struct Model(Vec<Vec<Page>>);

impl Model {
    fn new() -> Self {
        Self(PAGES.map(|pages| vec![[0; PAGE_BYTES]; pages as usize]).to_vec())
    }
}

/// Destination: memory, pages that it knows, and what it was asked to do.
struct Destination {
    memory: Model,
    known: HashMap<KeyedDigest, Page>,
    touched_zeros: u64,
}

impl Target for Destination {
    fn put(&mut self, block: u16, first: PageIndex, bytes: &[u8]) -> io::Result<()> {
        let pages = &mut self.memory.0[usize::from(block)][first.at()..];
        pages.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zeros(&mut self, block: u16, pages: PageRange) -> io::Result<()> {
        for page in pages.pages() {
            let page = &mut self.memory.0[usize::from(block)][page.at()];
            self.touched_zeros += u64::from(*page == [0; PAGE_BYTES]);
            *page = [0; PAGE_BYTES];
        }
        Ok(())
    }

    fn patch(
        &mut self,
        block: u16,
        page: PageIndex,
        offset: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        let page = &mut self.memory.0[usize::from(block)][page.at()];
        page[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn adopt(&mut self, block: u16, page: PageIndex, digest: &KeyedDigest) -> io::Result<bool> {
        let known = self.known.get(digest);
        if let Some(known) = known {
            self.memory.0[usize::from(block)][page.at()] = *known;
        }
        Ok(known.is_some())
    }

    fn damaged(&mut self, _: u16, _: PageIndex) -> io::Result<()> {
        panic!("nothing is damaged")
    }
}

/// Both ends: what the encoder wrote to each stream is applied when it is asked for.
struct Wire {
    streams: Vec<Stream>,
    rounds: Rounds,
    destination: Destination,
    answers: Vec<Chunk>,
    /// Longest head of a full chunk, and pages sent as such.
    pages: u64,
}

struct Stream {
    bytes: Vec<u8>,
    applier: Applier,
}

impl Wire {
    fn new(streams: usize) -> Self {
        let memory = Model::new();
        let stream = || Stream { bytes: Vec::new(), applier: Applier::new().unwrap() };
        Self {
            streams: (0..streams).map(|_| stream()).collect(),
            rounds: Rounds::new(streams),
            destination: Destination { memory, known: HashMap::new(), touched_zeros: 0 },
            answers: Vec::new(),
            pages: 0,
        }
    }

    /// Applies all that was written, stream by stream, as far as rounds allow.
    fn apply(&mut self, geometry: &Geometry) {
        for at in 0..self.streams.len() {
            self.apply_stream(at, geometry);
        }
    }

    fn apply_stream(&mut self, at: usize, geometry: &Geometry) {
        let bytes = std::mem::take(&mut self.streams[at].bytes);
        let (mut rest, mut reader) = (&bytes[..], FrameReader::default());
        loop {
            let frame = match reader.next(&mut rest, geometry) {
                Ok(frame) => frame,
                Err(ReceiveError::Ended) => break,
                Err(error) => panic!("{error}"),
            };
            if let Frame::Pages { chunk, .. } = &frame {
                assert!(self.rounds.may_apply(at, chunk.round).unwrap());
                self.pages += chunk.count() as u64;
            }
            match self.streams[at].applier.apply(&frame, &mut self.destination).unwrap() {
                Applied::Lacking(chunk) => self.answers.insert(0, chunk),
                Applied::RoundEnded(round) => _ = self.rounds.end(at, round).unwrap(),
                Applied::Memory | Applied::Other => {}
            }
        }
        assert_eq!(reader.received(), bytes.len() as u64);
    }
}

type Shared = Arc<Mutex<Wire>>;

struct End(Shared, usize);

impl Outlet for End {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.0.lock().unwrap().streams[self.1].bytes.send(parts)
    }
}

struct Answering(Shared);

impl Answers for Answering {
    fn next_lacking(&mut self) -> io::Result<Chunk> {
        let mut wire = self.0.lock().unwrap();
        wire.apply(&geometry());
        Ok(wire.answers.pop().expect("each question is answered"))
    }
}

fn geometry() -> Geometry {
    Geometry::new(PAGES.to_vec())
}

/// Change of a run of pages.
#[derive(Clone, Debug)]
enum Change {
    /// Other random bytes in all of each page.
    Fill(u8),
    /// Bytes that compress.
    Text(u8),
    /// Some words of each page.
    Words(Vec<(usize, u8)>),
    /// Zeros.
    Zero,
    /// Nothing, and yet it counts as changed.
    Nothing,
}

fn changes() -> impl Strategy<Value = Vec<(usize, u32, u32, Change)>> {
    let change = prop_oneof![
        any::<u8>().prop_map(Change::Fill),
        any::<u8>().prop_map(Change::Text),
        prop::collection::vec((0..PAGE_BYTES, any::<u8>()), 1..20).prop_map(Change::Words),
        Just(Change::Zero),
        Just(Change::Nothing),
    ];
    prop::collection::vec((0..2_usize, 0..700_u32, 1..300_u32, change), 0..8)
}

fn change(page: &mut Page, at: u32, change: &Change) {
    match change {
        Change::Fill(seed) => {
            let mut state = u64::from(*seed) << 32 | u64::from(at) | 1 << 60;
            for word in page.as_chunks_mut::<8>().0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state.to_le_bytes();
            }
        }
        Change::Text(seed) => {
            page.iter_mut().enumerate().for_each(|(byte, it)| *it = (byte % 7) as u8 ^ seed)
        }
        Change::Words(words) => words.iter().for_each(|(byte, value)| page[*byte] = *value),
        Change::Zero => *page = [0; PAGE_BYTES],
        Change::Nothing => {}
    }
}

fn run(
    streams: usize,
    options: &EncodeOptions,
    asks: bool,
    rounds: &[Vec<(usize, u32, u32, Change)>],
) {
    let wire: Shared = Arc::new(Mutex::new(Wire::new(streams)));
    let ends = (0..streams).map(|at| End(Arc::clone(&wire), at)).collect();
    let mut encoder = Encoder::new(ends, geometry(), options).unwrap();
    let mut source = Model::new();
    if asks {
        let key = KeyedDigestKey::from_secret(&SECRET);
        let mut page = [0; PAGE_BYTES];
        for at in 0..350 {
            change(&mut page, at, &Change::Fill(3));
            wire.lock().unwrap().destination.known.insert(key.digest(&page), page);
        }
        encoder = encoder.asking(Box::new(Answering(Arc::clone(&wire))), &SECRET);
    }
    for (number, changes) in rounds.iter().enumerate() {
        let mut changed: [Vec<u32>; 2] = [Vec::new(), Vec::new()];
        for (block, first, count, what) in changes {
            let end = (first + count).min(PAGES[*block]);
            for page in *first..end {
                change(&mut source.0[*block][page as usize], page, what);
                changed[*block].push(page);
            }
        }
        for (block, mut pages) in changed.into_iter().enumerate() {
            pages.sort_unstable();
            pages.dedup();
            for run in pages.chunk_by(|one, other| one + 1 == *other) {
                put(&mut encoder, &source, block, run);
            }
        }
        encoder.end_round().unwrap();
        let mut wire = wire.lock().unwrap();
        wire.apply(&geometry());
        assert_eq!(wire.rounds.done(), number as u32 + 1);
        assert!(wire.destination.memory == source, "round {number}");
        assert_eq!(
            wire.destination.touched_zeros, 0,
            "zeros are marked where there was something else"
        );
    }
    let (tally, wire) = (encoder.tally(), wire.lock().unwrap());
    assert_eq!(tally.pages, wire.pages);
    let payload = (tally.pages + tally.deltas) * PAGE_BYTES as u64;
    assert!(
        options.compresses || tally.bytes <= payload + 32 * tally.frames + 40 * 1000 + 4 * 8192
    );
}

/// Puts pages as a transfer would: known zeros as such, sometimes zeros unnoticed.
fn put(encoder: &mut Encoder<End>, source: &Model, block: usize, run: &[u32]) {
    let pages = &source.0[block][run[0] as usize..][..run.len()];
    if pages.iter().all(|page| *page == [0; PAGE_BYTES]) && run[0].is_multiple_of(2) {
        let range = PageRange { first: PageIndex(run[0]), count: run.len() as u32 };
        return encoder.zeros(block, range).unwrap();
    }
    encoder.put(block, PageIndex(run[0]), pages.as_flattened()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn memories_are_equal_after_each_round(
        streams in 1..4_usize,
        compresses: bool,
        asks: bool,
        version_pages in prop_oneof![Just(0_usize), Just(50), Just(10_000)],
        rounds in prop::collection::vec(changes(), 1..6),
    ) {
        let options = EncodeOptions { compresses, version_bytes: version_pages * PAGE_BYTES };
        run(streams, &options, asks, &rounds);
    }
}

fn whole(change: Change) -> Vec<(usize, u32, u32, Change)> {
    vec![(0, 0, 700, change)]
}

fn tally_of(rounds: &[Change]) -> bindery_migration::encode::SendTally {
    let mut encoder =
        Encoder::new(vec![Vec::new()], geometry(), &EncodeOptions::default()).unwrap();
    let mut source = Model::new();
    for changed in rounds {
        for (block, first, count, what) in whole(changed.clone()) {
            (first..first + count)
                .for_each(|page| change(&mut source.0[block][page as usize], page, &what));
            encoder.put(0, PageIndex(0), source.0[0].as_flattened()).unwrap();
        }
        encoder.end_round().unwrap();
    }
    encoder.tally()
}

#[test]
fn zero_pages_cost_nothing_in_the_bulk_stage() {
    let tally = tally_of(&[Change::Zero]);
    assert_eq!((tally.silent_zeros, tally.pages, tally.zeros), (700, 0, 0));
    assert_eq!(tally.bytes, 24, "the end of the round alone");
}

#[test]
fn a_full_chunk_costs_its_pages_and_24_bytes() {
    let tally = tally_of(&[Change::Fill(1)]);
    assert_eq!(tally.bytes, 700 * 4096 + 11 * 24 + 24);
}

#[test]
fn changed_words_cost_little_and_unchanged_pages_nothing() {
    let first = tally_of(&[Change::Fill(1), Change::Fill(2)]);
    let words = Change::Words(vec![(8, 1), (4000, 2)]);
    let then = tally_of(&[Change::Fill(1), Change::Fill(2), words.clone()]);
    assert_eq!(then.deltas, 700);
    let bytes = then.bytes - first.bytes - 24;
    assert!(bytes <= 700 * 24 + 11 * 24, "{bytes} bytes for two words of each of 700 pages");
    let same = tally_of(&[Change::Fill(1), Change::Fill(2), words, Change::Nothing]);
    assert_eq!((same.unchanged, same.bytes - then.bytes), (700, 24));
}
