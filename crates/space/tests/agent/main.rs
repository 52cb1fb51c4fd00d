//! The agent against a daemon that says what the test wants, nonsense and silence included.
#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod lanes;
mod nonsense;
mod source;

use std::fs;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bindery_space::agent::{Agent, AgentConfig};
use bindery_sys::mapping::Mapping;
use bindery_sys::socket;
use bindery_units::{PAGE_BYTES, Slot};
use bindery_wire::control::{FromDaemon, FromShim, StoreId, VERSION};
use bindery_wire::lane::{MergedSpan, Op, PageOutcome, Request, Run, RunTarget};
use common::{Bench, merged};
use daemon::{Connection, Daemon, SOON};
use tempfile::TempDir;

/// Managed memory, an agent for it and a daemon that it has called.
pub(crate) struct Meeting {
    pub(crate) bench: Bench,
    pub(crate) agent: Arc<Agent>,
    pub(crate) daemon: Option<Daemon>,
    pub(crate) connection: Connection,
    directory: TempDir,
    /// A test that forks shares the memory of all others with its child, and the kernel moves no page that
    /// is shared.
    _alone: MutexGuard<'static, ()>,
}

impl Meeting {
    /// `None` where the machine cannot manage memory.
    pub(crate) fn new(pages: usize, slots: u32) -> Option<Self> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let bench = Bench::new(pages, slots)?;
        let directory = tempfile::tempdir().expect("directory");
        let socket = directory.path().join("socket");
        let daemon = Daemon::listen(&socket);
        let config = AgentConfig {
            socket,
            name: Some("web".into()),
            domain: None,
            command: "vmm -m 1G".into(),
        };
        let agent = Arc::new(Agent::start(Arc::clone(&bench.space), config).expect("agent"));
        let connection = daemon.accept();
        Some(Self { bench, agent, daemon: Some(daemon), connection, directory, _alone: alone })
    }

    /// A meeting after the first greetings: the store is number 2, and the region was announced.
    pub(crate) fn greeted(pages: usize, slots: u32) -> Option<Self> {
        let mut meeting = Self::new(pages, slots)?;
        meeting.connection.welcome(StoreId(2), &meeting.bench.store);
        assert_eq!(meeting.connection.added(), meeting.bench.region);
        Some(meeting)
    }

    /// The daemon dies, and another takes its place.
    fn replace_daemon(self) -> Self {
        drop((self.connection, self.daemon));
        let daemon = Daemon::listen(&self.directory.path().join("socket"));
        let connection = daemon.accept();
        Self { daemon: Some(daemon), connection, ..self }
    }
}

/// Stops an agent when its test ends: memory that is unmapped then is looked at by nobody.
pub(crate) struct Stop(pub(crate) Arc<Agent>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Whether `condition` holds soon: threads end a moment after their connection does.
fn eventually(condition: impl Fn() -> bool) -> bool {
    let started = std::time::Instant::now();
    while !condition() {
        if started.elapsed() > SOON {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn a_guest_says_who_it_is_and_which_memory_it_has() {
    let Some(mut meeting) = Meeting::new(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let FromShim::Hello { version, name, domain, command, stores, .. } = &meeting.connection.hello
    else {
        panic!("{:?} instead of Hello", meeting.connection.hello);
    };
    assert_eq!((*version, name.as_deref(), domain.as_deref()), (VERSION, Some("web"), None));
    assert_eq!((command.as_str(), stores.as_slice()), ("vmm -m 1G", [].as_slice()));

    meeting.connection.welcome(StoreId(2), &meeting.bench.store);
    assert_eq!(meeting.connection.added(), meeting.bench.region);

    let more = Mapping::anonymous(16 * PAGE_BYTES).expect("memory");
    let region = meeting.bench.space.manage(more.address(), more.bytes()).expect("manage");
    meeting.agent.regions_changed();
    assert_eq!(meeting.connection.added(), region);

    let gone = meeting.bench.space.forget(more.address().plus_pages(4), 2 * PAGE_BYTES);
    meeting.agent.regions_changed();
    assert_eq!(meeting.connection.message(), FromShim::RegionRemoved(gone[0]));
    meeting.bench.space.release_range(more.address(), more.bytes()).expect("release");
    meeting.agent.regions_changed();
    assert!(matches!(meeting.connection.message(), FromShim::RegionRemoved(_)));
    assert!(matches!(meeting.connection.message(), FromShim::RegionRemoved(_)));
}

#[test]
fn a_new_daemon_takes_over_within_a_period() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    meeting.bench.fill(3, 9);
    meeting.bench.fill_slot(Slot(5), 9);
    let lane = meeting.connection.open_lane();
    let run = Run { page: meeting.bench.page(3).0, count: 1, slot: 5, target: RunTarget::Slots };
    assert_eq!(lane.ask_to_merge(2, &[run], &[(0, &meeting.bench.store)]).count, 1);
    assert_eq!(lane.array::<PageOutcome>(0, 1), merged(1));
    let FromShim::Hello { instance, .. } = meeting.connection.hello else { panic!("Hello") };

    let died = Instant::now();
    let mut meeting = meeting.replace_daemon();
    assert!(died.elapsed() < Duration::from_secs(1), "found after {:?}", died.elapsed());
    assert!(lane.ask_raw(&[0; 64]).is_none(), "lanes of a daemon that died end");
    let FromShim::Hello { instance: again, stores, .. } = &meeting.connection.hello else {
        panic!("Hello")
    };
    assert_eq!((*again, stores.as_slice()), (instance, [StoreId(2)].as_slice()));
    assert!(meeting.bench.holds(3, 9), "the guest's page is as it was");

    meeting.connection.welcome(StoreId(3), &meeting.bench.store);
    assert_eq!(meeting.connection.added(), meeting.bench.region);
    let lane = meeting.connection.open_lane();
    let pages = meeting.bench.region.pages;
    let report = Request {
        op: Op::Report,
        first: pages.first.0,
        count: pages.count,
        ..Request::of(Op::Report)
    };
    assert_eq!(lane.ask::<u8>(report, &[]).count, 1);
    let expected = MergedSpan { page: meeting.bench.page(3).0, count: 1, slot: 5, store: 2 };
    assert_eq!(lane.array::<MergedSpan>(0, 1), [expected]);
}

#[test]
fn a_guest_that_is_told_to_steps_aside() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    meeting.bench.fill(1, 4);
    meeting.connection.channel.send(&FromDaemon::Release, &[], SOON).expect("release");
    let removed = FromShim::RegionRemoved(meeting.bench.region.pages);
    assert_eq!(meeting.connection.message(), removed);
    assert_eq!(meeting.connection.message(), FromShim::Released);
    assert!(meeting.connection.is_closed());
    assert!(eventually(|| meeting.agent.has_ended()));
    assert!(meeting.bench.space.regions().is_empty());
    assert!(meeting.bench.holds(1, 4));
    let daemon = meeting.daemon.as_ref().expect("daemon");
    assert!(!daemon.is_called(Duration::from_millis(300)), "it does not come back");
}

#[test]
fn a_guest_that_has_stepped_aside_stays_away_though_nobody_heard_it() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    meeting.connection.channel.send(&FromDaemon::Release, &[], SOON).expect("release");
    // The daemon is killed.
    socket::shutdown(meeting.connection.channel.as_fd()).expect("shutdown");
    assert!(eventually(|| meeting.agent.has_ended()));
    assert!(meeting.bench.space.regions().is_empty());
    let daemon = meeting.daemon.as_ref().expect("daemon");
    assert!(!daemon.is_called(Duration::from_millis(300)), "it does not come back");
}

#[test]
fn a_guest_that_is_refused_stays_away() {
    let Some(mut meeting) = Meeting::new(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let refused = FromDaemon::Refused { reason: "the name web is taken".into() };
    meeting.connection.channel.send(&refused, &[], SOON).expect("refuse");
    assert!(meeting.connection.is_closed());
    let daemon = meeting.daemon.as_ref().expect("daemon");
    assert!(!daemon.is_called(Duration::from_millis(300)), "it does not come back");
    assert!(eventually(|| meeting.agent.has_ended()));
}

#[test]
fn a_guest_that_a_daemon_had_asks_again_when_the_next_one_refuses_it() {
    let Some(meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let mut meeting = meeting.replace_daemon();
    for _ in 0..3 {
        let refused = FromDaemon::Refused { reason: "the name web is taken".into() };
        meeting.connection.channel.send(&refused, &[], SOON).expect("refuse");
        assert!(meeting.connection.is_closed());
        meeting.connection = meeting.daemon.as_ref().expect("daemon").accept();
    }
    assert!(!meeting.agent.has_ended());
    meeting.connection.welcome(StoreId(3), &meeting.bench.store);
    assert_eq!(meeting.connection.added(), meeting.bench.region);
}

/// Threads of this process whose name begins so.
pub(crate) fn threads_named(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("tasks").flatten();
    let is_named = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    tasks.filter(is_named).count()
}
