//! Transfers of a guest that is played: its image is its memory in the last pause, whatever fails before.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_transfer::{Ending, Limits, Outcome, Progress, Request, TransferError, run};
use bindery_vmm::{Overlay, Purpose, Vmm};
use proptest::prelude::*;

use guest::{Image, Played, PlayedMemory, PlayedVmm};

/// Limits under which 800 pages take some rounds.
fn tight() -> Limits {
    Limits {
        pause_limit: None,
        pause_max: Duration::from_millis(1),
        rounds_max: 4,
        buffer_bytes_max: 64 * 4096,
        bytes_per_second: Some(100 << 20),
    }
}

struct Scene {
    played: Arc<Played>,
    memory: PlayedMemory,
    vmm: PlayedVmm,
    /// Memory as of the last epoch that was committed.
    kept: Image,
}

impl Scene {
    fn new(played: &Arc<Played>) -> Self {
        Self {
            played: Arc::clone(played),
            memory: PlayedMemory::new(Arc::clone(played)),
            vmm: PlayedVmm::new(Arc::clone(played)),
            kept: Image::new(Arc::clone(played)),
        }
    }

    /// Makes one transfer on top of what was kept; keeps it if `commits`.
    fn capture(&mut self, purpose: Purpose, limits: Limits, commits: bool) -> Captured {
        let mut image = Image::new(Arc::clone(&self.played));
        image.blocks.clone_from(&self.kept.blocks);
        let overlay = Overlay {
            node: "disk".to_owned(),
            path: "/overlay".into(),
            overlay_node: "overlay".to_owned(),
        };
        let request = Request {
            overlays: &[overlay],
            purpose,
            limits,
            is_cancelled: &AtomicBool::new(false),
            progress: &|_| (),
        };
        let (ending, rounds) = {
            let captured = run(&mut self.vmm, &mut self.memory, &mut image, &request)?;
            let Outcome { epoch, ending, rounds, .. } = captured;
            if commits {
                epoch.commit();
            } else {
                drop(epoch);
            }
            (ending, rounds.len())
        };
        assert_eq!(Some(&image.blocks), self.vmm.oracle.as_ref(), "the image is the memory");
        let puts = image.puts;
        if commits {
            self.kept = image;
        }
        assert!(!self.memory.is_prepared());
        Ok((ending, rounds, puts))
    }
}

type Captured = Result<(Ending, usize, u64), TransferError>;

#[test]
fn images_are_the_memory_in_the_pause() {
    let (played, threads) = Played::start(2, 1);
    let mut scene = Scene::new(&played);
    for number in 0..30 {
        // One of three is thrown away: the next one has its pages again.
        let commits = number % 3 != 1;
        scene.capture(Purpose::Checkpoint, tight(), commits).unwrap();
        assert!(!played.is_paused());
    }
    played.end(threads);
    let (_, rounds, _) = scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
    assert!(rounds < 4);
    // Nothing is written any more, but by saving, and what nobody tracks.
    let (ending, rounds, puts) = scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
    assert_eq!((ending, rounds), (Ending::Fits, 0));
    assert!(puts <= 6, "{puts}");
}

#[test]
fn a_failure_at_any_call_loses_nothing() {
    for purpose in [Purpose::Checkpoint, Purpose::HandOver] {
        let (played, threads) = Played::start(1, 2);
        let mut scene = Scene::new(&played);
        scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
        let mut fails_at = 0;
        loop {
            // Some calls in a row, then further apart: there is one for each run of pages.
            fails_at = fails_at + 1 + fails_at / 12;
            (0..300).for_each(|page| played.write((0, page)));
            played.faults.arm(fails_at);
            let captured = scene.capture(purpose, tight(), true);
            let came = played.faults.came() || captured.is_err();
            played.faults.arm(0);
            if let Err(error) = &captured {
                assert!(error.to_string().contains("told to fail"), "{error}");
                if played.is_paused() {
                    assert!(error.to_string().contains("MAY STAND STILL"), "{error}");
                    played.rescue();
                } else {
                    assert!(
                        error.to_string().contains("the guest runs on")
                            || fails_at == 1
                            || error.to_string().starts_with("pause"),
                        "{error}"
                    );
                }
            } else if purpose == Purpose::HandOver {
                assert!(played.is_paused());
                scene.vmm.resume().unwrap();
            }
            scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
            if captured.is_ok() && !came {
                break;
            }
        }
        assert!(fails_at > 50, "only {fails_at} calls");
        played.end(threads);
    }
}

#[test]
fn a_guest_that_is_handed_over_stays_paused() {
    let (played, threads) = Played::start(2, 3);
    let mut scene = Scene::new(&played);
    scene.capture(Purpose::HandOver, tight(), true).unwrap();
    assert!(played.is_paused());
    // And one that stands is captured without rounds.
    let (ending, rounds, _) = scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
    assert_eq!((ending, rounds), (Ending::Fits, 0));
    assert!(played.is_paused(), "whoever paused it resumes it");
    played.end(threads);
}

#[test]
fn a_guest_that_writes_faster_than_it_is_read_is_given_up() {
    let (played, threads) = Played::start(4, 4);
    played.slow_reads.store(true, Ordering::SeqCst);
    let mut scene = Scene::new(&played);
    let limits = Limits { bytes_per_second: Some(1 << 20), rounds_max: 20, ..tight() };
    let (ending, rounds, _) = scene.capture(Purpose::Checkpoint, limits, true).unwrap();
    assert_eq!(ending, Ending::NotConverging);
    // Unless the pause would be too long: then the guest runs on, and nothing is lost.
    let limits = Limits { pause_limit: Some(Duration::from_millis(1)), ..limits };
    let error = scene.capture(Purpose::Checkpoint, limits, false).unwrap_err();
    assert!(matches!(error, TransferError::TooLong { .. }), "{error}");
    assert!(!played.is_paused());
    played.slow_reads.store(false, Ordering::SeqCst);
    scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
    assert!(rounds < 20);
    played.end(threads);
}

#[test]
fn a_transfer_that_is_cancelled_puts_its_pages_back() {
    let (played, threads) = Played::start(2, 5);
    let mut scene = Scene::new(&played);
    for rounds in 0..3 {
        let is_cancelled = AtomicBool::new(rounds == 0);
        let progress = |progress: Progress| {
            if progress.round + 1 >= rounds {
                is_cancelled.store(true, Ordering::SeqCst);
            }
        };
        let request = Request {
            overlays: &[],
            purpose: Purpose::Checkpoint,
            limits: Limits { bytes_per_second: Some(1 << 20), ..tight() },
            is_cancelled: &is_cancelled,
            progress: &progress,
        };
        let mut image = Image::new(Arc::clone(&played));
        let result = run(&mut scene.vmm, &mut scene.memory, &mut image, &request);
        assert!(matches!(result, Err(TransferError::Cancelled)), "{rounds}");
        assert!(!played.is_paused());
    }
    scene.capture(Purpose::Checkpoint, tight(), true).unwrap();
    played.end(threads);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_limits_give_the_memory_in_the_pause(
        seed in any::<u64>(),
        (rounds_max, buffer_pages, speed) in (0_u32..4, 0_usize..900, 12_u32..34),
        steps in prop::collection::vec((any::<bool>(), 0_usize..400), 1..5),
    ) {
        let (played, threads) = Played::start(2, seed);
        let mut scene = Scene::new(&played);
        let limits = Limits {
            rounds_max,
            buffer_bytes_max: buffer_pages * 4096,
            bytes_per_second: Some(1 << speed),
            ..tight()
        };
        for (commits, fails_at) in steps {
            played.faults.arm(fails_at);
            let captured = scene.capture(Purpose::Checkpoint, limits, commits);
            played.faults.arm(0);
            if captured.is_err() && played.is_paused() {
                played.rescue();
            }
        }
        scene.capture(Purpose::Checkpoint, limits, true).unwrap();
        played.end(threads);
    }
}
