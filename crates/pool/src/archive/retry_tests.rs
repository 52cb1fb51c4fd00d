//! Attempts end with success, with what no attempt changes, or with the time; in simulated time.

use super::*;

const PATIENCE: Patience = Patience {
    request: Duration::from_secs(2),
    deadline: Duration::from_secs(20),
    opening: Duration::from_secs(10),
    first_delay: Duration::from_millis(100),
    longest_delay: Duration::from_secs(4),
};

fn subject() -> Subject {
    Subject { store: "s3://bucket".into(), key: "key".into() }
}

fn busy() -> Fault {
    Fault::Busy { store: "s3://bucket".into(), detail: "503".into() }
}

/// What came of it, how many attempts it took, and how long.
fn outcome(
    answers: impl Fn(u32) -> Option<Result<u32, Fault>>,
) -> (Result<u32, Fault>, u32, Duration) {
    outcome_with(PATIENCE, answers)
}

fn outcome_with(
    patience: Patience,
    answers: impl Fn(u32) -> Option<Result<u32, Fault>>,
) -> (Result<u32, Fault>, u32, Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (start, attempts) = (Instant::now(), std::cell::Cell::new(0));
        let attempt = async || {
            attempts.set(attempts.get() + 1);
            match answers(attempts.get()) {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        };
        let result = patience.attempt(&subject(), attempt).await;
        (result, attempts.get(), start.elapsed())
    })
}

#[test]
fn transient_faults_are_repeated_and_others_are_not() {
    for fails in 0..5 {
        let (result, attempts, _) =
            outcome(|attempt| Some(if attempt > fails { Ok(attempt) } else { Err(busy()) }));
        assert_eq!((result.unwrap(), attempts), (fails + 1, fails + 1));
    }
    let gone = || Fault::NoBucket { store: "s3://bucket".into() };
    let (result, attempts, took) = outcome(|_| Some(Err(gone())));
    assert!(matches!(result, Err(Fault::NoBucket { .. })));
    assert_eq!((attempts, took), (1, Duration::ZERO));
}

#[test]
fn the_deadline_ends_everything() {
    let (result, attempts, took) = outcome(|_| Some(Err(busy())));
    let Err(Fault::Deadline { attempts: told, waited, last, .. }) = result else { panic!() };
    assert_eq!((told, waited), (attempts, took));
    assert!(matches!(*last, Fault::Busy { .. }));
    // Half of 0.1 + 0.2 + … + 4 + 4 s on average, 20 s in all.
    assert!((5..100).contains(&attempts) && took < PATIENCE.deadline, "{attempts} {took:?}");
}

#[test]
fn attempts_that_hang_are_given_up_and_repeated() {
    let (result, attempts, took) = outcome(|attempt| (attempt == 3).then_some(Ok(attempt)));
    assert_eq!((result.unwrap(), attempts), (3, 3));
    assert!(took >= PATIENCE.request * 2 && took < PATIENCE.request * 2 + Duration::from_secs(1));
    let (result, _, took) = outcome(|_| None);
    assert!(matches!(result, Err(Fault::Deadline { .. })));
    assert!(took <= PATIENCE.deadline);
}

#[test]
fn an_attempt_that_the_deadline_cuts_off_hides_nothing() {
    let patience = Patience { request: PATIENCE.deadline, ..PATIENCE };
    let (result, attempts, took) =
        outcome_with(patience, |attempt| (attempt == 1).then(|| Err(busy())));
    let Err(Fault::Deadline { attempts: told, last, .. }) = result else { panic!() };
    assert_eq!((told, attempts, took), (2, 2, PATIENCE.deadline));
    assert!(matches!(*last, Fault::Busy { .. }), "{last}");
    let (result, ..) = outcome_with(patience, |_| None);
    let Err(Fault::Deadline { last, .. }) = result else { panic!() };
    assert!(last.to_string().contains("none within 20s"), "{last}");
}

#[test]
fn delays_grow_to_the_longest() {
    for (attempts, longest) in [(1, 100), (2, 200), (6, 3200), (7, 4000), (1000, 4000)] {
        let longest = Duration::from_millis(longest);
        let delays: Vec<Duration> = (0..1000).map(|_| PATIENCE.delay(attempts)).collect();
        assert!(delays.iter().all(|delay| *delay <= longest));
        assert!(delays.iter().any(|delay| *delay > longest.mul_f64(0.9)));
        assert!(delays.iter().any(|delay| *delay < longest.mul_f64(0.1)));
    }
}
