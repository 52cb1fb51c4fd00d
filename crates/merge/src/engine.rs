//! The engine: what the daemon holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use bindery_sys::thread::cpu_time;

use crate::Connected;
use crate::domain::{Domain, DomainError, Grant};
use crate::member::{Health, Member};
use crate::period::{Domains, run_period};
use crate::settings::Settings;
use crate::status::EngineStatus;
use crate::unmerge::{UnmergeError, Unmerging, merge_again, unmerge};
use crate::workers::Workers;

/// Merges the pages of guests.
///
/// One thread calls [`run_period`](Self::run_period) again and again, or [`run`](Self::run) once.
/// All other methods may be called from any thread at any time; only [`unmerge`](Self::unmerge) and
/// [`merge`](Self::merge) wait for the period at work.
pub struct Engine {
    settings: Mutex<Settings>,
    workers: Workers,
    grants: Mutex<BTreeMap<String, Weak<Grant>>>,
    inbox: Mutex<Vec<Change>>,
    core: Mutex<Core>,
    status: Mutex<Arc<EngineStatus>>,
    stopped: AtomicBool,
    /// Rung when the settings change or the engine is stopped.
    bell: Condvar,
}

enum Change {
    Add(Arc<Grant>, Connected),
    Remove(u32),
}

#[derive(Default)]
struct Core {
    domains: Domains,
    periods: u64,
    cpu: Duration,
}

impl Engine {
    /// An engine without guests.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            workers: Workers::new(settings.workers),
            settings: Mutex::new(settings),
            grants: Mutex::default(),
            inbox: Mutex::default(),
            core: Mutex::default(),
            status: Mutex::default(),
            stopped: AtomicBool::new(false),
            bell: Condvar::new(),
        }
    }

    /// What guests of the domain `name` are to be welcomed with. The domain is made if there is
    /// none, and kept as long as there are guests in it or somebody holds the grant.
    ///
    /// # Errors
    /// [`DomainError`] if a new one cannot be made.
    pub fn domain(&self, name: &str) -> Result<Arc<Grant>, DomainError> {
        let mut grants = guard(&self.grants);
        if let Some(grant) = grants.get(name).and_then(Weak::upgrade) {
            return Ok(grant);
        }
        grants.retain(|_, grant| grant.strong_count() > 0);
        let grant = Arc::new(Grant::new(name, &guard(&self.settings))?);
        grants.insert(name.to_owned(), Arc::downgrade(&grant));
        Ok(grant)
    }

    /// Merges the pages of `guest` from the next period on, with those of the domain that it was
    /// welcomed to.
    pub fn add_guest(&self, grant: &Arc<Grant>, guest: Connected) {
        guard(&self.inbox).push(Change::Add(Arc::clone(grant), guest));
    }

    /// Stops asking anything of a guest, from the next period on. What its process maps stays as
    /// it is until it ends, or comes back. Guests whose connection fails need not be removed.
    pub fn remove_guest(&self, id: u32) {
        guard(&self.inbox).push(Change::Remove(id));
    }

    /// Changes how many workers there are, at once.
    pub fn set_workers(&self, workers: usize) {
        self.workers.set_wanted(workers);
        guard(&self.settings).workers = self.workers.wanted();
        self.bell.notify_all();
    }

    /// Changes the period.
    pub fn set_period(&self, period: Duration) {
        guard(&self.settings).period = period;
        self.bell.notify_all();
    }

    /// How the engine works now.
    #[must_use]
    pub fn settings(&self) -> Settings {
        *guard(&self.settings)
    }

    /// Runs one period. Blocks until its work is done.
    ///
    /// # Panics
    /// If an invariant is broken. The engine is of no further use then: end the process, guests go
    /// on and a new daemon takes them over.
    pub fn run_period(&self) {
        let mut core = guard(&self.core);
        let (start, cpu) = (Instant::now(), cpu_time());
        self.take_changes(&mut core);
        let Core { domains, periods, cpu: used } = &mut *core;
        let before = *used;
        let tell = |domains: &Domains, periods: u64| {
            let used = before + cpu_time().saturating_sub(cpu);
            self.publish(domains, periods, used, start.elapsed());
        };
        run_period(domains, &self.workers, &self.stopped, |domains| tell(domains, *periods));
        *periods += 1;
        tell(domains, *periods);
        *used += cpu_time().saturating_sub(cpu);
    }

    /// Runs periods until [`stop`](Self::stop) is called, each as long after the one before as the
    /// settings say, or at once if that one took longer. Blocks.
    ///
    /// # Panics
    /// As [`run_period`](Self::run_period).
    pub fn run(&self) {
        while !self.is_stopped() {
            let start = Instant::now();
            self.run_period();
            let mut settings = guard(&self.settings);
            while !self.is_stopped() {
                let left = settings.period.saturating_sub(start.elapsed());
                if left.is_zero() {
                    break;
                }
                let waited = self.bell.wait_timeout(settings, left);
                settings = waited.expect("no thread panicked with the settings").0;
            }
        }
    }

    /// Ends [`run`](Self::run), and a period at work between two rounds.
    pub fn stop(&self) {
        // Relaxed: a flag; the settings' lock orders it before the bell.
        self.stopped.store(true, Ordering::Relaxed);
        drop(guard(&self.settings));
        self.bell.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Brings all pages of a guest back, and leaves it alone until [`merge`](Self::merge). Waits
    /// for the period at work, and then for the guest: some 6 µs a page.
    ///
    /// # Errors
    /// [`UnmergeError`]; nothing was done if there is no memory for it.
    pub fn unmerge(&self, id: u32) -> Result<Unmerging, UnmergeError> {
        self.with_member(id, unmerge).and_then(|result| result)
    }

    /// Merges a guest again that was unmerged. Waits for the period at work.
    ///
    /// # Errors
    /// [`UnmergeError::Unknown`].
    pub fn merge(&self, id: u32) -> Result<(), UnmergeError> {
        self.with_member(id, merge_again)
    }

    fn with_member<T>(
        &self,
        id: u32,
        work: impl FnOnce(&Domain, &Member) -> T,
    ) -> Result<T, UnmergeError> {
        let mut core = guard(&self.core);
        self.take_changes(&mut core);
        let mut members = core
            .domains
            .values()
            .flat_map(|domain| domain.members.values().map(move |member| (domain, member)));
        let found = members.find(|(_, member)| member.connection.identity().id == id);
        let (domain, member) = found.ok_or(UnmergeError::Unknown(id))?;
        let result = work(domain, member);
        core.domains.values_mut().for_each(Domain::sweep);
        // Whoever asked for it looks at the figures next.
        let last = Duration::from_micros(self.status().scan_time_us);
        self.publish(&core.domains, core.periods, core.cpu, last);
        Ok(result)
    }

    /// What the engine knew when its figures last changed: at the end of a period, and now and
    /// then within a long one. Never waits for a period.
    #[must_use]
    pub fn status(&self) -> Arc<EngineStatus> {
        Arc::clone(&guard(&self.status))
    }

    /// Looks at everything, as no other code may.
    #[cfg(test)]
    pub(crate) fn with_domains<T>(&self, look: impl FnOnce(&Domains) -> T) -> T {
        look(&guard(&self.core).domains)
    }

    fn take_changes(&self, core: &mut Core) {
        let backs_off = guard(&self.settings).backs_off;
        for change in std::mem::take(&mut *guard(&self.inbox)) {
            match change {
                Change::Add(grant, guest) => {
                    let name = grant.name().to_owned();
                    let domain = core.domains.entry(name);
                    domain.or_insert_with(|| Domain::new(grant, backs_off)).add(guest);
                }
                Change::Remove(id) => {
                    let mut members =
                        core.domains.values().flat_map(|domain| domain.members.values());
                    if let Some(member) =
                        members.find(|member| member.connection.identity().id == id)
                    {
                        member.set_health(Health::Lost);
                    }
                }
            }
        }
    }

    fn publish(&self, domains: &Domains, periods: u64, cpu: Duration, elapsed: Duration) {
        let settings = self.settings();
        let status = EngineStatus {
            full_scans: periods,
            workers: settings.workers as u64,
            period_ms: settings.period.as_millis() as u64,
            scan_time_us: elapsed.as_micros() as u64,
            cpu_time_us: cpu.as_micros() as u64 + self.workers.cpu_ns() / 1000,
            domains: domains.values().map(Domain::status).collect(),
        };
        *guard(&self.status) = Arc::new(status);
    }
}

/// Locks what only the engine's own threads change.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked while it changed the engine")
}
