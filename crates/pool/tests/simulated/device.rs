//! A device in memory.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bindery_pool::BLOCK_BYTES;
use bindery_pool::device::Device;
use bindery_sys::direct::Buffer;
use rand::rngs::StdRng;

use super::wreck::{Unsynced, wreck};
use super::{Power, Supply};

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// With EIO. A sync that fails so loses what it should have made durable (fsync(2)).
    Error,
    /// With EIO, and a write is done up to the middle.
    Short,
    /// Because there is no room.
    Full,
}

/// A device that holds what was synced and what was not apart.
pub(crate) struct Simulated {
    power: Arc<Power>,
    state: Mutex<State>,
    /// What happens behind the reader's back once he has read.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Simulated({} bytes)", self.bytes())
    }
}

struct State {
    /// What a crash leaves for sure.
    durable: Vec<u8>,
    /// What is read.
    seen: Vec<u8>,
    /// What lies between the two, in order.
    unsynced: Vec<Unsynced>,
    /// Blocks that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
    /// How many operations there were here that change the device.
    operations: u64,
    /// From which of them on, and before which, they fail, and how.
    faults: Vec<(Range<u64>, Fault)>,
    vanished: bool,
    most_bytes: u64,
}

impl Simulated {
    pub(super) fn new(power: Arc<Power>, bytes: u64) -> Self {
        let state = State {
            durable: vec![0; bytes as usize],
            seen: vec![0; bytes as usize],
            unsynced: Vec::new(),
            unreadable: BTreeSet::new(),
            operations: 0,
            faults: Vec::new(),
            vanished: false,
            most_bytes: u64::MAX,
        };
        Self { power, state: Mutex::new(state), meanwhile: Mutex::new(None) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many operations there were that change it.
    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Has operations fail: `from_now` counts those that change the device, from 0.
    pub(crate) fn fail(&self, from_now: Range<u64>, fault: Fault) {
        let mut state = self.state();
        let now = state.operations;
        let range = now.saturating_add(from_now.start)..now.saturating_add(from_now.end);
        state.faults.push((range, fault));
    }

    /// Has no operation fail any more, and the device be there again.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.unreadable.clear();
        state.vanished = false;
    }

    /// Nothing works any more, reads included.
    pub(crate) fn vanish(&self) {
        self.state().vanished = true;
    }

    /// Has something happen behind the back of whoever reads next, once he has read.
    pub(crate) fn meanwhile(&self, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Has a block fail to be read until it is written.
    pub(crate) fn spoil(&self, offset_bytes: u64) {
        self.state().unreadable.insert(offset_bytes / BLOCK_BYTES as u64);
    }

    /// Flips a bit, durably and unnoticed.
    pub(crate) fn flip(&self, offset_bytes: u64, bit: u32) {
        self.change(offset_bytes, |byte| byte ^ 1 << bit);
    }

    /// Changes a byte, durably and unnoticed.
    pub(crate) fn change(&self, offset_bytes: u64, change: impl Fn(u8) -> u8) {
        let mut state = self.state();
        let at = offset_bytes as usize;
        state.durable[at] = change(state.durable[at]);
        state.seen[at] = change(state.seen[at]);
    }

    /// What is read.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    /// Puts in durably what another device had, as a restored copy of it would.
    pub(crate) fn replace(&self, content: Vec<u8>) {
        let mut state = self.state();
        state.unsynced.clear();
        state.seen.clone_from(&content);
        state.durable = content;
    }

    /// Has it hold no more than so much when it is asked to grow.
    pub(crate) fn limit(&self, most_bytes: u64) {
        self.state().most_bytes = most_bytes;
    }

    /// What was not synced is as chance has it.
    pub(super) fn wreck(&self, random: &mut StdRng) {
        let mut state = self.state();
        let unsynced = std::mem::take(&mut state.unsynced);
        wreck(&mut state.durable, &unsynced, random);
        state.seen = state.durable.clone();
    }

    /// Counts an operation; how it fails.
    fn begin(&self, state: &mut State) -> Option<Failure> {
        let number = state.operations;
        state.operations += 1;
        let fault = state.faults.iter().find(|(range, _)| range.contains(&number));
        let fault = fault.map(|&(_, fault)| Failure::Fault(fault));
        match self.power.count() {
            _ if state.vanished => Some(Failure::Off),
            Supply::On => fault,
            Supply::Fails => Some(Failure::Power),
            Supply::Off => Some(Failure::Off),
        }
    }
}

/// Why an operation is not done, or not in full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    Fault(Fault),
    /// It is as if it had been done without a sync.
    Power,
    Off,
}

impl Failure {
    fn error(self) -> io::Error {
        match self {
            Self::Fault(Fault::Full) => io::ErrorKind::StorageFull.into(),
            Self::Fault(_) => io::Error::from_raw_os_error(5),
            Self::Power | Self::Off => io::Error::other("the machine is off"),
        }
    }
}

fn check(state: &State, offset_bytes: u64, bytes: usize) {
    let whole =
        offset_bytes.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES);
    let within = offset_bytes + bytes as u64 <= state.seen.len() as u64;
    assert!(whole && within, "{bytes} bytes at {offset_bytes} are not blocks of the device");
}

impl Device for Simulated {
    fn bytes(&self) -> u64 {
        self.state().seen.len() as u64
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        let state = self.state();
        check(&state, offset_bytes, into.len());
        if state.vanished || self.power.off.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Failure::Off.error());
        }
        let block = |bytes: u64| bytes / BLOCK_BYTES as u64;
        let blocks = block(offset_bytes)..block(offset_bytes + into.len() as u64);
        if state.unreadable.range(blocks).next().is_some() {
            return Err(Failure::Fault(Fault::Error).error());
        }
        let bytes = into.len();
        into.copy_from_slice(&state.seen[offset_bytes as usize..][..bytes]);
        drop(state);
        let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).take();
        meanwhile.into_iter().for_each(|act| act());
        Ok(())
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        let mut state = self.state();
        check(&state, offset_bytes, from.len());
        let failure = self.begin(&mut state);
        let done = match failure {
            None | Some(Failure::Power) => from.len(),
            Some(Failure::Fault(Fault::Short)) => from.len() / 2,
            Some(_) => 0,
        };
        let at = offset_bytes as usize;
        state.seen[at..at + done].copy_from_slice(&from[..done]);
        if done > 0 {
            state.unsynced.push(Unsynced { at, bytes: from[..done].to_vec() });
            let first = offset_bytes / BLOCK_BYTES as u64;
            let written = first..first + (done / BLOCK_BYTES) as u64;
            state.unreadable.retain(|block| !written.contains(block));
        }
        failure.map_or(Ok(()), |failure| Err(failure.error()))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        let failure = self.begin(&mut state);
        match failure {
            None => {
                let State { durable, unsynced, .. } = &mut *state;
                unsynced.drain(..).for_each(|write| write.apply(durable));
                Ok(())
            }
            Some(failure) => {
                if matches!(failure, Failure::Fault(_)) {
                    // It stays in the cache, where it is read, and is never written.
                    state.unsynced.clear();
                }
                Err(failure.error())
            }
        }
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        check(&state, offset_bytes, bytes as usize);
        if let Some(failure) = self.begin(&mut state) {
            return Err(failure.error());
        }
        let at = offset_bytes as usize;
        let zeros = Unsynced { at, bytes: vec![0; bytes as usize] };
        zeros.apply(&mut state.seen);
        state.unsynced.push(zeros);
        Ok(())
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        let mut state = self.state();
        if let Some(failure) = self.begin(&mut state) {
            return Err(failure.error());
        }
        if bytes > state.most_bytes {
            return Err(Failure::Fault(Fault::Full).error());
        }
        let bytes = bytes.max(state.seen.len() as u64);
        state.seen.resize(bytes as usize, 0);
        state.durable.resize(bytes as usize, 0);
        Ok(bytes)
    }
}
