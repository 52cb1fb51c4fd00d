//! The pool's example as a store under test, in a process of its own.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bindery_example_tables::{Mapped, Mapper, Options, StoreError, Tables};
use bindery_pool::device::{DeviceAccess, DeviceOptions, FileDevice};
use bindery_pool::map::{Maps, Temperature};
use bindery_pool::object::Object;
use bindery_pool::reaper::{Grain, Reaper, ReaperSettings, ReaperStatistics};
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};
use bindery_sys::mapped::View;
use bindery_sys::mapping::{self, Mapping};
use bindery_units::PAGE_BYTES;
use bindery_ycsb::{BoxError, KEY_BYTES, Report as Figures, Store, Task, VALUE_BYTES};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Engine;

/// The file, sparse, in terms of the data: shelves are written anew beside the old ones.
const FILE_TO_DATA: u64 = 4;

/// Figures of a store, and of its reaper if it has one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answered {
    /// Figures of the store.
    #[serde(flatten)]
    pub figures: Figures,
    /// Work of its reaper.
    #[serde(default)]
    pub reaper: Option<Reaped>,
}

/// Work of a reaper, the warm-up included.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Reaped {
    /// CPU time that it took, in seconds.
    pub busy_s: f64,
    /// Pages that it evicted.
    pub pages_evicted: u64,
    /// Pages that it evicted and that did not go.
    pub pages_stuck: u64,
    /// Accesses to pages that were not in memory.
    pub misses: u64,
    /// Misses that there would have been besides without it, by its own sample.
    pub misses_saved: i64,
}

impl Reaped {
    fn of(statistics: &ReaperStatistics) -> Self {
        Self {
            busy_s: statistics.busy.as_secs_f64(),
            pages_evicted: statistics.pages_evicted,
            pages_stuck: statistics.pages_stuck,
            misses: statistics.misses,
            misses_saved: statistics.misses_saved,
        }
    }
}

/// Does a task, and gives figures if anything was measured.
///
/// # Errors
/// If the pool cannot be made or opened, or what [`Task::perform`] fails with.
pub fn perform(task: &Task, table_bytes: u64) -> Result<Option<Answered>> {
    let store = OnPool::open(task, table_bytes)?;
    let figures = task.perform(&store)?;
    let reaper = store.reaper.as_ref().map(|reaper| Reaped::of(&reaper.statistics()));
    Ok(figures.map(|figures| Answered { figures, reaper }))
}

/// A store on a pool of one file.
struct OnPool {
    tables: Tables,
    /// Evicts until the store is gone.
    reaper: Option<Reaper>,
}

impl OnPool {
    fn open(task: &Task, table_bytes: u64) -> Result<Self> {
        let pool = open_pool(task).context("opening the pool")?;
        let maps = Maps::default();
        let engine = Engine::from_str(&task.engine, false).map_err(anyhow::Error::msg)?;
        let grain = match engine {
            Engine::Reaper => Some(Grain::Page),
            Engine::Objects => Some(Grain::Object),
            _ => None,
        };
        let start = |grain| Reaper::start(&maps, settings(grain));
        let reaper = grain.map(start).transpose().context("starting the reaper")?;
        let by_itself = |advice| Arc::new(EachByItself { advice }) as Arc<dyn Mapper>;
        let mapper = match engine {
            Engine::Mmap => by_itself(libc::MADV_NORMAL),
            Engine::Random => by_itself(libc::MADV_RANDOM),
            _ => Arc::new(maps),
        };
        let tables = Tables::open(pool, mapper, Options { table_bytes, ..Options::default() })?;
        Ok(Self { tables, reaper })
    }
}

/// Part of the memory allowed that maps may use, in percent.
const MEMORY_PERCENT: u32 = 98;

fn settings(grain: Grain) -> ReaperSettings {
    ReaperSettings { grain, memory_percent: Some(MEMORY_PERCENT), ..ReaperSettings::default() }
}

fn open_pool(task: &Task) -> Result<Arc<Pool>> {
    let path = task.directory.join("pool");
    let options = DeviceOptions::new(DeviceAccess::Write);
    let attached = |path: &Path, device| AttachedDevice {
        label: path.display().to_string(),
        device: Arc::new(device),
    };
    if path.exists() {
        let device = FileDevice::open(&path, &options)?;
        return Ok(Arc::new(Pool::open_on(vec![attached(&path, device)])?));
    }
    let data_bytes = task.records * (KEY_BYTES + VALUE_BYTES) as u64;
    let bytes = (FILE_TO_DATA * data_bytes + (1 << 30)).next_multiple_of(2 << 20);
    let device = FileDevice::create(&path, bytes, &options)?;
    let device = NewDevice { attached: attached(&path, device), class: MediaClass::Capacity };
    let pool = Pool::create_on("ycsb".parse()?, vec![device], &CreateOptions::default())?;
    Ok(Arc::new(pool))
}

impl Store for OnPool {
    fn fill(
        &self,
        records: &mut dyn Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])>,
    ) -> Result<(), BoxError> {
        let owned =
            |(key, value): ([u8; KEY_BYTES], [u8; VALUE_BYTES])| (key.to_vec(), value.to_vec());
        Ok(self.tables.fill(records.map(owned))?)
    }

    fn read(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> Result<bool, BoxError> {
        Ok(self.tables.get(key, value)?)
    }

    fn put(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> Result<(), BoxError> {
        Ok(self.tables.put(key, value)?)
    }

    fn settle(&self) -> Result<(), BoxError> {
        self.tables.settle()?;
        Ok(self.tables.sync()?)
    }
}

/// What storage engines do without a pool: an mmap(2) for each object.
struct EachByItself {
    /// For madvise(2).
    advice: i32,
}

/// Objects, each with a mapping of its own.
struct Mappings(Vec<(Mapping, Arc<dyn Object>)>);

impl Mapper for EachByItself {
    fn map(
        &self,
        objects: &[Arc<dyn Object>],
        _temperature: Temperature,
    ) -> Result<Box<dyn Mapped>, StoreError> {
        let map =
            |object: &Arc<dyn Object>| Ok((map_one(&**object, self.advice)?, Arc::clone(object)));
        let mappings: std::io::Result<Vec<_>> = objects.iter().map(map).collect();
        Ok(Box::new(Mappings(mappings.map_err(|source| StoreError::Other(source.into()))?)))
    }
}

fn map_one(object: &dyn Object, advice: i32) -> std::io::Result<Mapping> {
    let device = object.device();
    let file = device.file().ok_or(std::io::ErrorKind::Unsupported)?;
    let bytes = (object.length_bytes() as usize).next_multiple_of(PAGE_BYTES);
    let mapping = Mapping::shared_at(file, object.offset_bytes(), bytes, false)?;
    // SAFETY: this advice changes no content, and the mapping is ours.
    unsafe { mapping::advise(mapping.address(), bytes, advice)? };
    Ok(mapping)
}

impl Mapped for Mappings {
    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> Result<View<'_>, StoreError> {
        Ok(View::of(&self.0[object].0, offset_bytes as usize, bytes))
    }
}
