//! The engine: what the daemon holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use bindery_advisor::Mode;
use bindery_guest::Connection;

use crate::admit::admit;
use crate::agenda::Turn;
use crate::arrivals::{Arrivals, Settled, Sharing};
use crate::domain::{Domain, Domains};
use crate::grant::{DomainError, Grant};
use crate::guest::{Guest, Health};
use crate::huge::{HugePolicy, HugeSettings, MemoryLevel};
use crate::limit;
use crate::meter::Meter;
use crate::nodes::{MachineNodes, Nodes};
use crate::pace::Pacer;
use crate::period::{Means, run_period};
use crate::queue::Queue;
use crate::settings::MergeSettings;
use crate::status::EngineStatus;
use crate::stop::Stop;
use crate::tally::PageMap;
use crate::troubles::Troubles;
use crate::unmerge::{UnmergeError, Unmerging, merge_again, unmerge};
use crate::workers::{WORKERS_MAX, Workers};

/// A guest, or a model of one.
pub type Connected = Arc<dyn Connection>;

/// Merges the pages of guests.
///
/// One thread calls [`run_period`](Self::run_period) again and again, or [`run`](Self::run) once.
/// All other methods may be called from any thread at any time; only [`unmerge`](Self::unmerge) and
/// [`merge`](Self::merge) wait for the period at work.
pub struct Engine {
    settings: Mutex<MergeSettings>,
    workers: Workers,
    grants: Mutex<BTreeMap<String, Weak<Grant>>>,
    inbox: Mutex<Vec<Change>>,
    /// Of periods, and of those who wait for one to end.
    queue: Queue,
    core: Mutex<Core>,
    status: Mutex<Arc<EngineStatus>>,
    meter: Arc<Meter>,
    troubles: Arc<Troubles>,
    stop: Arc<Stop>,
    /// Whether merging waits for something outside.
    is_idle: AtomicBool,
    memory: Mutex<MemoryLevel>,
    maps: Mutex<BTreeMap<u32, Arc<PageMap>>>,
    /// Rung when the settings change or the engine is stopped.
    bell: Condvar,
}

/// How often figures are published within a period, at most.
const PUBLISHING: Duration = Duration::from_millis(100);

/// How many times longer periods are while merging is idle.
const IDLE_PERIODS: u32 = 10;

enum Change {
    Add(Arc<Grant>, Connected),
    Remove(u32),
}

struct Core {
    arrivals: Arrivals,
    domains: Domains,
    /// The guest that the next period begins with.
    turn: Turn,
    pacer: Pacer,
    /// What the pacer was made for.
    paced: MergeSettings,
    periods: u64,
}

/// Error of a change that takes an engine without guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guests are managed")]
pub struct GuestsManaged;

impl Engine {
    /// Makes an engine without guests.
    #[must_use]
    pub fn new(settings: MergeSettings) -> Self {
        Self::with_nodes(settings, Arc::new(MachineNodes))
    }

    /// Makes an engine without guests, for a machine with these nodes.
    #[must_use]
    pub fn with_nodes(settings: MergeSettings, nodes: Arc<dyn Nodes>) -> Self {
        let (meter, stop) = (Arc::<Meter>::default(), Arc::<Stop>::default());
        let troubles = Arc::<Troubles>::default();
        let workers = Workers::new(
            workers_of(&settings),
            Arc::clone(&meter),
            Arc::clone(&stop),
            Arc::clone(&troubles),
        );
        workers.set_limit(ceiling(&settings), settings.spare_cpu);
        let core = Core {
            arrivals: Arrivals::new(nodes),
            domains: Domains::default(),
            turn: None,
            pacer: Pacer::new(&paced(settings)),
            paced: settings,
            periods: 0,
        };
        Self {
            workers,
            settings: Mutex::new(settings),
            grants: Mutex::default(),
            inbox: Mutex::default(),
            queue: Queue::default(),
            core: Mutex::new(core),
            status: Mutex::default(),
            meter,
            troubles,
            stop,
            is_idle: AtomicBool::new(false),
            memory: Mutex::default(),
            maps: Mutex::default(),
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
        let mut settings = guard(&self.settings);
        settings.workers = workers.clamp(1, WORKERS_MAX);
        self.workers.set_wanted(workers_of(&settings));
        self.bell.notify_all();
    }

    /// Lets work take what all CPUs of the machine have left, with a worker for each of them at least, or has the
    /// ceiling hold again. At once, but for the rate, which changes with the next period.
    pub fn set_spare_cpu(&self, spare_cpu: bool) {
        let mut settings = guard(&self.settings);
        settings.spare_cpu = spare_cpu;
        self.workers.set_wanted(workers_of(&settings));
        self.workers.set_limit(ceiling(&settings), spare_cpu);
        self.bell.notify_all();
    }

    /// Changes the period.
    pub fn set_period(&self, period: Duration) {
        guard(&self.settings).period = period;
        self.bell.notify_all();
    }

    /// Changes how scans are paced: the ceiling at once, the rate with the next period.
    pub fn set_pace(&self, advisor: bindery_advisor::AdvisorSettings, pages_to_scan: Option<u64>) {
        let mut settings = guard(&self.settings);
        settings.advisor = advisor;
        settings.pages_to_scan = pages_to_scan;
        self.workers.set_limit(ceiling(&settings), settings.spare_cpu);
        self.bell.notify_all();
    }

    /// Changes how huge pages are treated, from the next period on.
    pub fn set_huge_pages(&self, huge_pages: HugeSettings) {
        guard(&self.settings).huge_pages = huge_pages;
    }

    /// Changes whether pages of guests on different nodes are merged. Waits for the period at work, unless that is so
    /// already.
    ///
    /// # Errors
    /// [`GuestsManaged`] if there is any guest, or a process that still maps pages of the store.
    pub fn set_across_nodes(&self, across_nodes: bool) -> Result<(), GuestsManaged> {
        if self.settings().across_nodes == across_nodes {
            return Ok(());
        }
        let _turn = self.queue.enter();
        let mut core = guard(&self.core);
        self.take_changes(&mut core, None);
        core.domains.values_mut().for_each(admit);
        core.domains.retain(|_, domain| !domain.is_empty());
        if !core.domains.is_empty() || !core.arrivals.is_empty() {
            return Err(GuestsManaged);
        }
        guard(&self.settings).across_nodes = across_nodes;
        Ok(())
    }

    /// Says how much memory the machine has left, from the next period on.
    pub fn set_memory(&self, level: MemoryLevel) {
        *guard(&self.memory) = level;
    }

    /// Has merging wait, or go on. What is merged stays merged meanwhile, guests come and go, and
    /// they are asked what they wrote in every tenth of the periods in which they would be.
    pub fn set_idle(&self, is_idle: bool) {
        // Relaxed: a flag; the lock orders it before the bell.
        self.is_idle.store(is_idle, Ordering::Relaxed);
        drop(guard(&self.settings));
        self.bell.notify_all();
    }

    /// What goes wrong for longer, so that it is logged once.
    #[must_use]
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// How the engine works now.
    #[must_use]
    pub fn settings(&self) -> MergeSettings {
        *guard(&self.settings)
    }

    /// Runs one period. Blocks until its work is done, or until a round ends after the time for it: what is
    /// left is looked at in the next period, together with what has become stable meanwhile.
    ///
    /// # Panics
    /// If an invariant is broken. The engine is of no further use then: end the process, guests go
    /// on and a new daemon takes them over.
    pub fn run_period(&self) {
        let _turn = self.queue.enter();
        let mut core = guard(&self.core);
        let (start, settings) = (Instant::now(), self.settings());
        self.workers.begin();
        self.take_changes(&mut core, None);
        let Core { domains, turn, pacer, paced: paced_by, periods, .. } = &mut *core;
        let pace = |settings: &MergeSettings| {
            (settings.advisor, settings.pages_to_scan, settings.spare_cpu)
        };
        if pace(paced_by) != pace(&settings) {
            pacer.set(&paced(settings));
            *paced_by = settings;
        }
        let deadline = start + settings.period;
        let mut published = start;
        let (workers, meter, stop) = (&self.workers, &*self.meter, &*self.stop);
        let (queue, is_idle) = (&self.queue, self.is_idle());
        let huge = HugePolicy { settings: settings.huge_pages, memory: *guard(&self.memory) };
        let mut means = Means { workers, pacer, meter, stop, queue, is_idle, huge };
        run_period(domains, turn, &mut means, deadline, |domains, pacer| {
            if published.elapsed() >= PUBLISHING {
                self.publish(domains, pacer, *periods, start.elapsed());
                published = Instant::now();
            }
        });
        *periods += 1;
        self.publish(domains, pacer, *periods, start.elapsed());
        self.workers.lap();
    }

    /// Runs periods until [`stop`](Self::stop) is called, each as long after the one before as the
    /// settings say, or at once if that one took longer. Blocks.
    ///
    /// # Panics
    /// As [`run_period`](Self::run_period).
    pub fn run(&self) {
        while !self.stop.is_set() {
            let start = Instant::now();
            self.run_period();
            let mut settings = guard(&self.settings);
            while !self.stop.is_set() {
                let periods = if self.is_idle() { IDLE_PERIODS } else { 1 };
                let left = (settings.period * periods).saturating_sub(start.elapsed());
                if left.is_zero() {
                    break;
                }
                let waited = self.bell.wait_timeout(settings, left);
                settings = waited.expect("no thread panicked with the settings").0;
            }
        }
    }

    /// Ends [`run`](Self::run), and a period at work before the next round, or the next guest that is to
    /// say what it wrote.
    pub fn stop(&self) {
        self.stop.set();
        drop(guard(&self.settings));
        self.bell.notify_all();
    }

    fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed)
    }

    /// Brings all pages of a guest back, and leaves it alone until [`merge`](Self::merge). Waits
    /// for the period at work, and then for the guest: some 6 µs a page.
    ///
    /// # Errors
    /// [`UnmergeError`]; nothing was done if there is no memory for it.
    pub fn unmerge(&self, id: u32) -> Result<Unmerging, UnmergeError> {
        self.with_guest(id, unmerge).and_then(|result| result)
    }

    /// Merges a guest again that was unmerged. Waits for the period at work.
    ///
    /// # Errors
    /// [`UnmergeError::Unknown`].
    pub fn merge(&self, id: u32) -> Result<(), UnmergeError> {
        self.with_guest(id, merge_again)
    }

    fn with_guest<T>(
        &self,
        id: u32,
        work: impl FnOnce(&Domain, &Guest) -> T,
    ) -> Result<T, UnmergeError> {
        let _turn = self.queue.enter();
        let mut core = guard(&self.core);
        self.take_changes(&mut core, Some(id));
        // Who came since the last period has regions already, and may have merged pages.
        core.domains.values_mut().for_each(admit);
        let mut guests = core
            .domains
            .values()
            .flat_map(|domain| domain.guests.values().map(move |guest| (domain, guest)));
        let found = guests.find(|(_, guest)| guest.connection.identity().id == id);
        let (domain, guest) = found.ok_or(UnmergeError::Unknown(id))?;
        let result = work(domain, guest);
        core.domains.values_mut().for_each(Domain::sweep);
        // Whoever asked for it looks at the figures next.
        let last = Duration::from_micros(self.status().period_time_us);
        self.publish(&core.domains, &core.pacer, core.periods, last);
        Ok(result)
    }

    /// What the engine knew when its figures last changed: at the end of a period, and now and
    /// then within a long one. Never waits for a period.
    #[must_use]
    pub fn status(&self) -> Arc<EngineStatus> {
        Arc::clone(&guard(&self.status))
    }

    /// What the pages of a guest are, from its first period on and as long as it is connected. Never
    /// waits for a period; what the map shows changes while merging goes on.
    #[must_use]
    pub fn map(&self, id: u32) -> Option<Arc<PageMap>> {
        guard(&self.maps).get(&id).cloned()
    }

    /// Looks at everything, as no other code may.
    #[cfg(test)]
    pub(crate) fn with_domains<T>(&self, look: impl FnOnce(&mut Domains) -> T) -> T {
        look(&mut guard(&self.core).domains)
    }

    /// Takes in guests that came and went. One that is `awaited` has a domain afterwards.
    fn take_changes(&self, core: &mut Core, awaited: Option<u32>) {
        for change in std::mem::take(&mut *guard(&self.inbox)) {
            match change {
                Change::Add(grant, guest) => core.arrivals.add(grant, guest),
                Change::Remove(id) => {
                    core.arrivals.remove(id);
                    let mut guests =
                        core.domains.values().flat_map(|domain| domain.guests.values());
                    if let Some(guest) = guests.find(|guest| guest.connection.identity().id == id) {
                        guest.set_health(Health::Lost);
                    }
                }
            }
        }
        let MergeSettings { across_nodes, backs_off, .. } = self.settings();
        let sharing = Sharing { across_nodes, awaited };
        for settled in core.arrivals.settle(&core.domains, sharing, &self.troubles) {
            let Settled { id, grant, connection, node } = settled;
            let (meter, troubles) = (Arc::clone(&self.meter), Arc::clone(&self.troubles));
            let domain = core.domains.entry(id.clone());
            let new = || Domain::new(id, grant, node, backs_off, meter, troubles);
            domain.or_insert_with(new).add(connection);
        }
    }

    fn publish(&self, domains: &Domains, pacer: &Pacer, periods: u64, elapsed: Duration) {
        let settings = self.settings();
        let status = EngineStatus {
            full_scans: periods,
            workers: self.workers.wanted() as u64,
            period_ms: settings.period.as_millis() as u64,
            period_time_us: elapsed.as_micros() as u64,
            cpu_time_us: self.meter.threads_us(),
            lanes_cpu_time_us: self.meter.lanes_us(),
            is_idle: self.is_idle(),
            advisor: pacer.status(),
            phases: self.workers.phases().status(),
            domains: domains.values().map(Domain::status).collect(),
        };
        *guard(&self.status) = Arc::new(status);
        let guests = domains.values().flat_map(|domain| domain.guests.values());
        *guard(&self.maps) = guests
            .map(|guest| (guest.connection.identity().id, Arc::clone(guest.tally.shown())))
            .collect();
    }
}

/// The ceiling on CPU time, in percent of one CPU, where there is one.
fn ceiling(settings: &MergeSettings) -> Option<u64> {
    (settings.advisor.mode != Mode::None).then_some(settings.advisor.max_cpu_percent)
}

/// Number of workers that are wanted.
fn workers_of(settings: &MergeSettings) -> usize {
    if settings.spare_cpu { settings.workers.max(limit::cpus()) } else { settings.workers }
}

/// Settings as the pacer is to have them: what CPUs have left is no rate that it could reckon with.
fn paced(mut settings: MergeSettings) -> MergeSettings {
    if settings.spare_cpu {
        settings.advisor.max_cpu_percent = 100 * limit::cpus() as u64;
    }
    settings
}

/// Locks what only the engine's own threads change.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked while it changed the engine")
}
