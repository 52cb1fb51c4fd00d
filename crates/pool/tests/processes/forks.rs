//! Pools, and what was taken from them, in children of fork: refused, and the parent goes on.

use std::fmt::Display;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bindery_pool::archive::Archive;
use bindery_pool::device::{Device, DeviceAccess, DeviceOptions, FileDevice, IoEngine, Read};
use bindery_pool::map::{self, BackEndChoice, BackEndKind, Map, Maps, PageRun, Temperature};
use bindery_pool::mblock::Committed;
use bindery_pool::object::Object;
use bindery_pool::reaper::{Reaper, ReaperSettings};
use bindery_pool::write::{Committer, Writer};
use bindery_pool::{
    AttachedDevice, CreateOptions, MediaClass, NewDevice, ObjectId, OpenLog, OpenMdc, Pool,
    PoolReader,
};
use bindery_sys::direct::Buffer;
use bindery_testkit::fork::{Child, in_child};
use bindery_testkit::skipped;
use tempfile::TempDir;

use crate::child::{Other, open, say};
use crate::model::{Written, read};

const CLASS: MediaClass = MediaClass::Capacity;

/// A file for a pool, and the pools on it.
struct Rig(TempDir);

impl Rig {
    fn path(&self) -> PathBuf {
        self.0.path().join("x.bindery")
    }

    fn create(engine: IoEngine) -> (Self, Pool) {
        let rig = Self(tempfile::tempdir().unwrap());
        let options =
            DeviceOptions { engine: Some(engine), ..DeviceOptions::new(DeviceAccess::Write) };
        let device: Arc<dyn Device> =
            Arc::new(FileDevice::create(&rig.path(), 64 << 20, &options).unwrap());
        let attached = AttachedDevice { label: "x".into(), device };
        let devices = vec![NewDevice { attached, class: CLASS }];
        let pool = Pool::create_on("x".parse().unwrap(), devices, &CreateOptions::default());
        (rig, pool.unwrap())
    }

    fn open(&self) -> Pool {
        open(&[self.path()])
    }
}

fn write(pool: &Pool, it: Written) -> Writer {
    let mut writer = pool.allocate_mblock(CLASS, it.length as u64).unwrap();
    writer.append(&it.bytes()).unwrap();
    writer
}

/// What has been taken from a pool, and is used by parent and child.
struct Taken {
    pool: Option<Pool>,
    writer: Option<Writer>,
    object: Option<Arc<Committed>>,
    _deleted: Option<Arc<Committed>>,
    log: Option<OpenLog>,
    mdc: Option<OpenMdc>,
    committer: Option<Committer>,
    maps: Maps,
    map: Vec<Map>,
    _reaper: Option<Reaper>,
    reader: Option<PoolReader>,
    read: Option<Arc<Committed>>,
    archive: Option<Archive>,
}

const KEPT: Written = Written { seed: 1, length: 50_000 };
const BEGUN: Written = Written { seed: 2, length: 5 << 20 };
const HANDED_IN: Written = Written { seed: 3, length: 3 << 20 };

impl Taken {
    fn of(rig: &Rig, pool: Pool) -> Self {
        let object = write(&pool, KEPT).commit().unwrap();
        let deleted = write(&pool, KEPT).commit().unwrap();
        pool.delete(deleted.id()).unwrap();
        let writer = write(&pool, BEGUN);
        let log = pool.create_log(CLASS, 64 << 10, 1).unwrap();
        let mdc = pool.create_mdc(CLASS, 64 << 10, 1).unwrap();
        let committer = pool.committer().unwrap();
        committer.commit(write(&pool, HANDED_IN)).unwrap();
        let maps = Maps::default();
        let dynamic: Arc<dyn Object> = object.clone();
        let map = [BackEndKind::File, BackEndKind::Memfd].into_iter().filter_map(|kind| {
            let options = map::MapOptions {
                choice: BackEndChoice::Fixed(kind),
                ..map::MapOptions::default()
            };
            let mapped = maps.map(&[Arc::clone(&dynamic)], Temperature::Warm, &options);
            mapped.inspect_err(|error| skipped!("a map of {kind:?}: {error}")).ok()
        });
        let map = map.collect();
        let reaper = Reaper::start(&maps, ReaperSettings::default());
        let reaper = reaper.inspect_err(|error| skipped!("the reaper: {error}")).ok();
        let reader = PoolReader::open(&[rig.path()], None).unwrap();
        let read = reader.get(object.id()).unwrap();
        let directory = rig.0.path().join("archive");
        std::fs::create_dir(&directory).unwrap();
        let url = format!("file://{}", directory.display());
        let archive =
            Archive::open(&url, bindery_pool::archive::ArchiveOptions::default()).unwrap();
        pool.set_archive(archive.clone()).unwrap();
        Self {
            pool: Some(pool),
            writer: Some(writer),
            object: Some(object),
            _deleted: Some(deleted),
            log: Some(log),
            mdc: Some(mdc),
            committer: Some(committer),
            maps,
            map,
            _reaper: reaper,
            reader: Some(reader),
            read: Some(read),
            archive: Some(archive),
        }
    }

    /// Calls everything that reads or writes; what was not refused as it should be.
    fn call_all(&mut self) -> Vec<String> {
        let mut wrong = Wrong::default();
        let pool = self.pool.as_ref().unwrap();
        let object = self.object.as_ref().unwrap();
        let id = object.id();
        let name = || "y".parse().unwrap();
        wrong.unless_refused("allocate", pool.allocate_mblock(CLASS, 8));
        wrong.unless_refused("committer", pool.committer());
        wrong.unless_refused("get", pool.get(id));
        wrong.unless_refused("delete", pool.delete(id));
        wrong.unless_refused("rename", pool.rename(name()));
        wrong.unless_refused("repair", pool.repair());
        wrong.unless_refused("grow", pool.grow_device(bindery_pool::DeviceIndex(0), 1 << 30));
        wrong.unless_refused("create log", pool.create_log(CLASS, 64 << 10, 1));
        wrong.unless_refused("open log", pool.open_log(ObjectId(0)));
        wrong.unless_refused("create mdc", pool.create_mdc(CLASS, 64 << 10, 1));
        wrong.unless_refused("create root", pool.create_root(CLASS, 64 << 10, 1));
        wrong.unless_refused("open mdc", pool.open_mdc(ObjectId(0)));
        wrong.unless_refused("archive", pool.move_to_archive(id));
        wrong.unless_refused("bring back", pool.bring_back(id, CLASS));
        wrong.unless_refused("sweep", pool.sweep_archive(Duration::ZERO));
        wrong.unless_refused("idle", pool.archive_idle(Duration::ZERO, CLASS));
        wrong.unless_refused("set archive", pool.set_archive(self.archive.clone().unwrap()));
        let archive = self.archive.as_ref().unwrap();
        wrong.unless_refused("head", archive.head(uuid::Uuid::from_u128(pool.id()), id));
        let verified = pool.verify();
        wrong.unless_refused(
            "verify",
            match verified.findings.first() {
                Some(finding) => Err(finding.to_string()),
                None => Ok(()),
            },
        );
        assert_eq!((pool.reclaim(), pool.list().len()), (0, 4), "what was so when it was forked");
        let writer = self.writer.as_mut().unwrap();
        wrong.unless_refused("append", writer.append(&[0; 100]));
        wrong.unless_refused("commit", self.writer.take().unwrap().commit());
        let mut buffer = Buffer::zeroed(4096);
        wrong.unless_refused("read", object.read(0, &mut buffer));
        wrong.unless_refused("read of a reader", self.read.as_ref().unwrap().read(0, &mut buffer));
        let reader = self.reader.as_ref().unwrap();
        wrong.unless_refused("get of a reader", reader.get(id));
        wrong.unless_refused("refresh", reader.refresh());
        wrong.unless_refused("verify of a reader", reader.verify(|_| ()));
        let log = self.log.as_mut().unwrap();
        wrong.unless_refused("log", log.append(&[1; 100]).and_then(|_| log.sync()));
        let mdc = self.mdc.as_mut().unwrap();
        wrong.unless_refused("mdc", mdc.append(&[1; 100]).and_then(|_| mdc.sync()));
        let finished = self.committer.take().unwrap().finish().into_iter();
        wrong.unless_refused("finish", finished.collect::<Result<Vec<_>, _>>());
        let dynamic: Arc<dyn Object> = object.clone();
        let options = map::MapOptions::default();
        for maps in [&self.maps, &Maps::default()] {
            let mapped = maps.map(&[Arc::clone(&dynamic)], Temperature::Warm, &options);
            wrong.unless_refused("map", mapped);
        }
        for map in &self.map {
            wrong.unless_refused("view", map.get(0, 0, 8));
            wrong.unless_refused("read of a map", map.read(0, 0, &mut [0; 8]));
            let run = PageRun { object: 0, first_page: 0, pages: 1 };
            wrong.unless_refused("prefetch", map.prefetch(&[run]));
            wrong.unless_refused("purge", map.purge());
            wrong.unless_refused("residency", map.residency());
        }
        let device = Arc::clone(object.device());
        wrong.unless_refused("write to the device", device.write(0, &buffer));
        wrong.unless_refused("sync of the device", device.sync());
        wrong.unless_refused("hold", device.hold(0, 4096));
        wrong.0
    }

    /// Uses everything, closes the pool, and says what it holds.
    fn go_on(mut self) -> Vec<(ObjectId, Written)> {
        let (pool, object) = (self.pool.as_ref().unwrap(), self.object.as_ref().unwrap());
        assert!(read(self.read.as_ref().unwrap()) == KEPT.bytes());
        for map in &self.map {
            let mut bytes = vec![0; KEPT.length];
            map.read(0, 0, &mut bytes).unwrap();
            assert!(bytes == KEPT.bytes());
        }
        let begun = self.writer.take().unwrap().commit().unwrap().id();
        let handed_in = self.committer.take().unwrap().finish().pop().unwrap().unwrap().id();
        let (log, mdc) = (self.log.as_mut().unwrap(), self.mdc.as_mut().unwrap());
        log.append(&[5; 100]).unwrap();
        log.sync().unwrap();
        mdc.append(&[5; 100]).unwrap();
        mdc.sync().unwrap();
        let mut kept = vec![(object.id(), KEPT), (begun, BEGUN), (handed_in, HANDED_IN)];
        for seed in 10..15 {
            let it = Written { seed, length: 5000 };
            kept.push((write(pool, it).commit().unwrap().id(), it));
        }
        kept
    }
}

#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn unless_refused<T>(&mut self, what: &str, outcome: Result<T, impl Display>) {
        match outcome {
            Ok(_) => self.0.push(format!("{what} succeeded")),
            Err(error) => {
                let text = error.to_string();
                if !text.contains("open the pool in the child") {
                    self.0.push(format!("{what}: {text}"));
                }
            }
        }
    }
}

#[test]
fn children_are_refused_and_parents_lose_nothing() {
    for engine in IoEngine::ALL {
        let (rig, pool) = Rig::create(engine);
        let mut taken = Some(Taken::of(&rig, pool));
        let said = in_child(|| {
            let mut taken = taken.take().unwrap();
            let wrong = taken.call_all();
            drop(taken);
            wrong.join("\n")
        });
        assert_eq!(said, "", "{engine}");

        // Nothing that the parent has is the worse for it.
        let mut kept = taken.unwrap().go_on();
        let pool = rig.open();
        assert!(pool.verify().findings.is_empty(), "{engine}");
        kept.push(write(&pool, BEGUN).commit().map(|object| (object.id(), BEGUN)).unwrap());
        for (id, it) in kept {
            assert!(read(&pool.get(id).unwrap()) == it.bytes(), "object {id} with {engine}");
        }
    }
}

#[test]
fn a_child_opens_the_pool_its_parent_closed() {
    for engine in IoEngine::ALL {
        let (rig, pool) = Rig::create(engine);
        let object = write(&pool, BEGUN).commit().unwrap();
        // The calling thread has a ring from now on, which its child has not.
        let mut buffers = [(); 3].map(|()| Buffer::zeroed(4096));
        let offsets = [0, 4096, 8192].map(|at| object.offset_bytes() + at);
        let reads = offsets.into_iter().zip(&mut buffers);
        let reads = reads.map(|(offset_bytes, into)| Read { offset_bytes, into });
        object.device().read_many(&mut reads.collect::<Vec<_>>()).unwrap();
        let (id, mut inherited) = (object.id(), Some((pool, object)));
        let child = Child::start(60, || {
            // Until it has dropped its own copies, it keeps the device in use itself.
            drop(inherited.take());
            let pool = rig.open();
            let new = write(&pool, KEPT).commit().unwrap();
            let is_there = read(&pool.get(id).unwrap()) == BEGUN.bytes();
            format!("{} {is_there}", new.id().0)
        });
        drop(inherited);
        let said = child.wait();
        let new = ObjectId(said.strip_suffix(" true").unwrap().parse().unwrap());
        let pool = rig.open();
        assert!(read(&pool.get(new).unwrap()) == KEPT.bytes(), "{engine}");
        assert!(read(&pool.get(id).unwrap()) == BEGUN.bytes(), "{engine}");
    }
}

#[test]
fn a_child_that_lives_keeps_nothing_from_others() {
    let (rig, pool) = Rig::create(IoEngine::Uring);
    let object = write(&pool, KEPT).commit().unwrap();
    let (let_go, mut wait) = std::io::pipe().map(|(wait, let_go)| (let_go, wait)).unwrap();
    let child = Child::start(60, || {
        let mut word = [0];
        std::io::Read::read_exact(&mut wait, &mut word).unwrap();
        String::new()
    });
    drop((pool, object));
    drop(rig.open());
    { let_go }.write_all(b"x").unwrap();
    assert_eq!(child.wait(), "");
}

/// Commits, forks a child that tries to as well, and goes on until it is killed.
pub(crate) fn commit_and_fork(paths: &[PathBuf]) {
    let mut pool = Some(open(paths));
    for seed in 0.. {
        let it = Written { seed, length: 5000 };
        let id = write(pool.as_ref().unwrap(), it).commit().unwrap().id();
        say(&format!("committed {} {seed}", id.0));
        let said = in_child(|| {
            let pool = pool.take().unwrap();
            pool.allocate_mblock(CLASS, 5000).map_or_else(|error| error.to_string(), |_| "!".into())
        });
        assert!(said.contains("open the pool in the child"), "{said}");
    }
}

#[test]
fn what_a_killed_parent_committed_is_there() {
    let (rig, pool) = Rig::create(IoEngine::Uring);
    drop(pool);
    let mut parent = Other::spawn("fork", &[rig.path()], 0);
    let mut committed = Vec::new();
    while committed.len() < 20 {
        let mut line = String::new();
        assert!(parent.lines.read_line(&mut line).unwrap() > 0, "it ended");
        let Some((_, numbers)) = line.trim().split_once("committed ") else { continue };
        let (id, seed) = numbers.split_once(' ').unwrap();
        committed.push((ObjectId(id.parse().unwrap()), seed.parse().unwrap()));
    }
    parent.kill();
    let pool = rig.open();
    assert!(pool.verify().findings.is_empty());
    for (id, seed) in committed {
        assert!(read(&pool.get(id).unwrap()) == Written { seed, length: 5000 }.bytes(), "{id}");
    }
}
