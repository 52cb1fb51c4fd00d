//! A machine with a pool on it.

use std::sync::Arc;

use bindery_pool::device::Device;
use bindery_pool::{
    AttachedDevice, CreateError, CreateOptions, MediaClass, NewDevice, OpenError, Pool, PoolReader,
};

use crate::simulated::{Machine, Simulated};

pub(crate) const MIB: u64 = 1 << 20;

/// Small, so that lives compact it often.
pub(crate) const CATALOGUE_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) machine: Machine,
    /// The class that each device is of.
    pub(crate) classes: Vec<MediaClass>,
}

impl Rig {
    pub(crate) fn new(devices: &[(MediaClass, u64)]) -> Self {
        let mut machine = Machine::new();
        let classes = devices.iter().map(|&(class, bytes)| {
            machine.device(bytes);
            class
        });
        let classes = classes.collect();
        Self { machine, classes }
    }

    /// One device of class capacity and one of class staging.
    pub(crate) fn two() -> Self {
        Self::new(&[(MediaClass::Capacity, 4 * MIB), (MediaClass::Staging, 2 * MIB)])
    }

    pub(crate) fn device(&self, index: usize) -> &Arc<Simulated> {
        &self.machine.devices()[index]
    }

    /// All devices that are of a class.
    pub(crate) fn attached(&self) -> Vec<AttachedDevice> {
        let devices = self.machine.devices().iter().take(self.classes.len());
        devices.enumerate().map(|(index, device)| attached(index, device)).collect()
    }

    pub(crate) fn try_create(&self, force: bool) -> Result<Pool, CreateError> {
        let options = CreateOptions { force, catalogue_bytes: Some(CATALOGUE_BYTES) };
        let devices = self.attached().into_iter().zip(&self.classes);
        let devices = devices.map(|(attached, &class)| NewDevice { attached, class }).collect();
        Pool::create_on("guests".parse().unwrap(), devices, &options)
    }

    pub(crate) fn create(&self) -> Pool {
        self.try_create(false).unwrap()
    }

    pub(crate) fn open(&self) -> Result<Pool, OpenError> {
        Pool::open_on(self.attached())
    }

    pub(crate) fn read(&self) -> Result<PoolReader, OpenError> {
        PoolReader::open_on(self.attached())
    }
}

pub(crate) fn attached(index: usize, device: &Arc<Simulated>) -> AttachedDevice {
    AttachedDevice { label: format!("disk{index}"), device: Arc::clone(device) as Arc<dyn Device> }
}
