//! The managed memory of this process, once there is any.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bindery_space::Space;
use bindery_space::agent::{Agent, AgentConfig, log};
use bindery_units::HostAddress;

use crate::fork;

/// What the hooks work with.
pub(crate) struct Managed {
    pub(crate) space: Arc<Space>,
    pub(crate) agent: Agent,
}

static MANAGED: OnceLock<Managed> = OnceLock::new();

/// Set in a child of fork: it has copies of all that is here, but none of the threads.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The managed memory, if this process has offered any. Two loads.
pub(crate) fn get() -> Option<&'static Managed> {
    if IS_CHILD.load(Ordering::Relaxed) {
        return None;
    }
    MANAGED.get()
}

/// The managed memory, if a range of bytes has any of it. No lock and no allocation where not.
pub(crate) fn overlapping(address: usize, bytes: usize) -> Option<&'static Managed> {
    get().filter(|managed| managed.space.overlaps(HostAddress(address), bytes))
}

/// Starts managing, or gives what was started. `None`, said once, if that cannot be done here.
pub(crate) fn start() -> Option<&'static Managed> {
    static FAILED: Mutex<bool> = Mutex::new(false);
    if IS_CHILD.load(Ordering::Relaxed) {
        return None;
    }
    if let Some(managed) = MANAGED.get() {
        return Some(managed);
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

/// Makes this process, a child of fork, one without managed memory, for good.
pub(crate) fn give_up_in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

impl Managed {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let space = Space::start()?;
        let agent = Agent::start(Arc::clone(&space), AgentConfig::from_environment())?;
        Ok(Self { space, agent })
    }

    /// Gives back the regions that a range touches, because the VMM is about to do `what` with them,
    /// which cannot be done with managed memory. Says so. False if they could not be given back.
    pub(crate) fn step_aside(&self, address: usize, bytes: usize, what: &str) -> bool {
        let released = self.space.release_when_idle(HostAddress(address), bytes);
        self.agent.regions_changed();
        match released {
            Ok(ranges) => {
                let pages: u64 = ranges.iter().map(|range| u64::from(range.count)).sum();
                log::say(format_args!(
                    "the VMM is to {what}: {} MiB stepped aside and are merged no more",
                    pages >> 8
                ));
                true
            }
            Err(error) => {
                log::say(format_args!("the VMM is to {what}, and memory is in the way: {error}"));
                false
            }
        }
    }
}
