//! What tests and benchmarks measure of the machine, and the settings that they change.
//!
//! Everything is read from `/proc` and `/sys` (proc(5), `Documentation/admin-guide/mm/ksm.rst`).
//! Guards write a setting and put the old value back when dropped, also on a panic; a process that
//! is killed leaves the setting as it was last.

mod backing;
mod cgroup;
mod cpu;
mod frames;
mod huge_pages;
mod ksm;
mod memory;
mod setting;
mod swap;

pub use backing::back_free_memory;
pub use cgroup::{BlockDevice, ControlGroup, DeviceRate};
pub use cpu::{ThreadTime, thread_cpu_times};
pub use frames::{FrameError, physical_frames};
pub use huge_pages::HugePagesGuard;
pub use ksm::{KsmCounters, KsmGuard, KsmSettings, ksmd_cpu_time};
pub use memory::{MemorySnapshot, ProcessMemory, drop_caches, sum_pss};
pub use setting::{MAX_MAP_COUNT, SettingError, SettingGuard};
pub use swap::SwapGuard;
