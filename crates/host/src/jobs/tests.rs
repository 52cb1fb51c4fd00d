//! Jobs that end, fail, are cancelled, seen and forgotten.

use super::*;
use std::sync::mpsc;

const SOON: Duration = Duration::from_secs(10);
const MEMBER: Rights = Rights::Member { uid: 7 };

fn new(rights: Rights, of_user: Option<u32>) -> NewJob {
    let (kind, unit) = (JobKind::CheckpointVerify, JobUnit::Pages);
    NewJob { kind, subject: "web@a".into(), of_user, rights, unit }
}

fn done() -> Result<JobResult, Failure> {
    Ok(JobResult::Exported { pages: 1, bytes: 2 })
}

/// Goes on until it is cancelled.
fn wait_for_cancel(progress: &Progress) -> Result<JobResult, Failure> {
    loop {
        progress.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn progress_and_result_are_reported() {
    let jobs = Arc::new(Jobs::default());
    let (go, may_go) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel::<()>();
    let number = jobs.start(new(MEMBER, Some(7)), move |progress| {
        progress.begin("reading", Some(10));
        progress.add(4);
        begun.send(()).unwrap();
        may_go.recv().unwrap();
        done()
    });
    let number = number.unwrap();
    has_begun.recv().unwrap();
    let status = jobs.status(number, MEMBER, Duration::ZERO).unwrap();
    assert_eq!((&*status.phase, status.done, status.total), ("reading", 4, Some(10)));
    assert_eq!(status.outcome, None);
    go.send(()).unwrap();
    let status = jobs.status(number, MEMBER, SOON).unwrap();
    assert_eq!(status.outcome, Some(JobOutcome::Done(Box::new(done().unwrap()))));
}

#[test]
fn cancelled_and_panicked_jobs_end_as_failures() {
    let jobs = Arc::new(Jobs::default());
    let failure = |number| match jobs.status(number, Rights::Owner, SOON).unwrap().outcome {
        Some(JobOutcome::Failed(failure)) => failure,
        outcome => panic!("{outcome:?}"),
    };
    let number = jobs.start(new(Rights::Owner, None), wait_for_cancel).unwrap();
    assert!(jobs.cancel(number, Rights::Owner).unwrap().is_cancelled);
    assert_eq!(failure(number).kind, FailureKind::Cancelled);
    let number = jobs.start(new(Rights::Owner, None), |_| panic!("on purpose")).unwrap();
    assert_eq!(failure(number).kind, FailureKind::Failed);
}

#[test]
fn jobs_of_others_are_as_if_they_were_not() {
    let jobs = Arc::new(Jobs::default());
    let of_member = jobs.start(new(MEMBER, Some(7)), |_| done()).unwrap();
    let of_all = jobs.start(new(Rights::Owner, None), |_| done()).unwrap();
    for (rights, visible) in
        [(Rights::Owner, 2), (MEMBER, 1), (Rights::Member { uid: 8 }, 0), (Rights::None, 0)]
    {
        assert_eq!(jobs.list(rights).len(), visible, "{rights:?}");
        let all = [of_member, of_all, 99].map(|number| jobs.status(number, rights, SOON));
        assert_eq!(all.iter().filter(|found| found.is_ok()).count(), visible, "{rights:?}");
        if visible < 2 {
            assert_eq!(jobs.cancel(of_all, rights).unwrap_err().kind, FailureKind::NoSuchJob);
        }
    }
}

#[test]
fn members_leave_room_for_owners_and_each_other() {
    let jobs = Arc::new(Jobs::default());
    let start = |rights| jobs.start(new(rights, None), wait_for_cancel);
    let members = [1, 2, 3, 4].map(|uid| Rights::Member { uid });
    for member in &members[..3] {
        for _ in 0..MEMBER_MAX {
            start(*member).unwrap();
        }
        assert_eq!(start(*member).unwrap_err().kind, FailureKind::Busy);
    }
    assert_eq!(start(members[3]).unwrap_err().kind, FailureKind::Busy);
    for _ in MEMBERS_MAX..RUNNING_MAX {
        start(Rights::Owner).unwrap();
    }
    assert_eq!(start(Rights::Owner).unwrap_err().kind, FailureKind::Busy);
    jobs.end_all(SOON);
    assert!(jobs.list(Rights::Owner).iter().all(|job| job.outcome.is_some()));
    start(members[3]).unwrap();
    jobs.end_all(SOON);
}

#[test]
fn ended_jobs_are_forgotten_each_user_by_itself() {
    let mut table = Table::default();
    let now = Instant::now();
    let end = |table: &mut Table, rights| {
        let job = table.enter(new(rights, None), now).unwrap();
        *job.end() = Some((now, JobOutcome::Failed(cancelled())));
        job.number
    };
    let first = end(&mut table, Rights::Owner);
    let firsts: Vec<u64> = (0..3 * ENDED_MAX).map(|_| end(&mut table, MEMBER)).collect();
    table.forget(now);
    assert!(table.jobs.contains_key(&first) && !table.jobs.contains_key(&firsts[0]));
    assert_eq!(table.jobs.len(), 1 + ENDED_MAX);
    table.forget(now + REMEMBERED);
    assert!(table.jobs.is_empty());
}
