//! The managed memory of this process, once there is any.

use std::panic;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bindery_space::Space;
use bindery_space::agent::{Agent, AgentConfig, log};
use bindery_sys::birth::Mark;
use bindery_sys::table;
use bindery_units::{HostAddress, PAGE_BYTES};
use bindery_wire::control::Region;

use crate::fork;

/// What the hooks work with.
pub(crate) struct Managed {
    pub(crate) space: Arc<Space>,
    pub(crate) agent: Agent,
    /// Gone in a copy of this process, which has none of our threads and descriptors.
    mark: Mark,
}

static MANAGED: OnceLock<Managed> = OnceLock::new();

/// The managed memory, if this process has offered any. A few loads.
pub(crate) fn get() -> Option<&'static Managed> {
    MANAGED.get().filter(|managed| managed.mark.is_here())
}

/// Returns true in a copy of a process that manages memory: a child of fork, or of any other call that
/// copies. What was managed is memory of its own there, parts of which are private mappings of a store.
pub(crate) fn is_copy() -> bool {
    MANAGED.get().is_some_and(|managed| !managed.mark.is_here())
}

/// Opens what `/proc` shows of this process in the table of our own, which a copy of it does not have.
pub(crate) fn with_own_table<T: Send>(look: impl FnOnce() -> T + Send) -> T {
    if is_copy() { look() } else { table::run(look) }
}

/// The managed memory, if a range of bytes has any of it. No lock and no allocation where not.
pub(crate) fn overlapping(address: usize, bytes: usize) -> Option<&'static Managed> {
    get().filter(|managed| managed.space.overlaps(HostAddress(address), bytes))
}

/// Starts managing, or gives what was started. `None`, said once, if that cannot be done here.
pub(crate) fn start() -> Option<&'static Managed> {
    static FAILED: Mutex<bool> = Mutex::new(false);
    if MANAGED.get().is_some() {
        return get();
    }
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if *failed || MANAGED.get().is_some() {
        return get();
    }
    match Managed::new() {
        Ok(managed) => {
            fork::register();
            Some(MANAGED.get_or_init(|| managed))
        }
        Err(error) => {
            log::say(format_args!("{error}"));
            *failed = true;
            None
        }
    }
}

impl Managed {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        // Our threads have no standard error; the hook is this library's alone.
        panic::set_hook(Box::new(|bug| log::say(format_args!("{bug}"))));
        let space = Space::start()?;
        let mark = Mark::set()?;
        let agent = Agent::start(Arc::clone(&space), AgentConfig::from_environment())?;
        Ok(Self { space, agent, mark })
    }

    /// Returns the managed regions that have a byte of a range.
    pub(crate) fn regions_in(&self, address: usize, bytes: usize) -> Vec<Region> {
        self.space.regions_in(HostAddress(address), bytes)
    }

    /// Makes ordinary memory of what is bound to a source in a range, because the VMM is about to do `what` with
    /// it: waits until its pages are there. False, said to the log, if they cannot be brought in.
    pub(crate) fn let_go(&self, address: usize, bytes: usize, what: &str) -> bool {
        let has_gone = self.space.let_go(HostAddress(address), bytes);
        if !has_gone {
            self.agent.say_rarely(
                &format!("{what}, bound"),
                format_args!("the VMM is to {what}, of which pages are missing and cannot be read"),
            );
        }
        has_gone
    }

    /// Gives back the regions that a range touches, because the VMM is about to do `what` with them,
    /// which cannot be done with managed memory. Says so. False if they could not be given back.
    pub(crate) fn step_aside(&self, address: usize, bytes: usize, what: &str) -> bool {
        self.space.withhold(HostAddress(address), bytes);
        let offered = self.space.withdraw(HostAddress(address), bytes);
        let released = self.space.release_range(HostAddress(address), bytes);
        if released.as_ref().map_or(true, |ranges| !ranges.is_empty()) {
            self.agent.regions_changed();
        }
        match released {
            Ok(ranges) => {
                let pages: u64 = ranges.iter().map(|range| u64::from(range.count)).sum();
                let bytes = offered as u64 + pages * PAGE_BYTES as u64;
                if bytes > 0 {
                    let kib = bytes >> 10;
                    self.agent.say_rarely(
                        what,
                        format_args!(
                            "the VMM is to {what}: {kib} KiB stepped aside and are merged no more"
                        ),
                    );
                }
                true
            }
            Err(error) => {
                self.agent.say_rarely(
                    &format!("{what}, in the way"),
                    format_args!("the VMM is to {what}, and memory is in the way: {error}"),
                );
                false
            }
        }
    }
}
