//! Stores that acknowledge what they do not keep: the object stays where it was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bindery_pool::object::Object;
use bindery_pool::{MediaClass, MoveError, ObjectId, Pool};
use hyper::Method;

use super::model::{Written, read};
use super::proxy::{Fault, Rule};
use super::rig::Rig;
use super::server::Bench;

use MediaClass::{Archive, Capacity};

/// Five parts of 16 KiB, the last of them not full.
const IT: Written = Written { seed: 1, length: 70_000 };
const PARTS: [u32; 4] = [0, 1, 2, 4];

const ERROR: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>InternalError</Code>\
                     <Message>We encountered an internal error.</Message></Error>";

/// What a store does with a part that it acknowledges.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Keeps nothing, and says that it failed, in the body of its 200.
    FailsInTheBody,
    KeepsNothing,
    KeepsAnEmptyKey,
    KeepsHalf,
    KeepsAllButTheLastByte,
    KeepsMore,
    KeepsAnotherPart,
    KeepsTheErrorInstead,
    TurnsABit,
}

const LIES: [Lie; 9] = [
    Lie::FailsInTheBody,
    Lie::KeepsNothing,
    Lie::KeepsAnEmptyKey,
    Lie::KeepsHalf,
    Lie::KeepsAllButTheLastByte,
    Lie::KeepsMore,
    Lie::KeepsAnotherPart,
    Lie::KeepsTheErrorInstead,
    Lie::TurnsABit,
];

impl Lie {
    fn fault(self, file: &Path, other: &Path) -> Fault {
        let (file, other) = (file.to_path_buf(), other.to_path_buf());
        match self {
            Self::FailsInTheBody => Fault::Acknowledge(ERROR),
            Self::KeepsNothing => Fault::Acknowledge(""),
            lie => Fault::Afterwards(Arc::new(move || lie.spoil(&file, &other))),
        }
    }

    fn spoil(self, file: &Path, other: &Path) {
        let mut bytes = fs::read(file).unwrap();
        let length = bytes.len();
        match self {
            Self::FailsInTheBody | Self::KeepsNothing => {}
            Self::KeepsAnEmptyKey => bytes.clear(),
            Self::KeepsHalf => bytes.truncate(length / 2),
            Self::KeepsAllButTheLastByte => bytes.truncate(length - 1),
            Self::KeepsMore => bytes.push(0),
            Self::KeepsAnotherPart => bytes = fs::read(other).unwrap(),
            Self::KeepsTheErrorInstead => bytes = ERROR.into(),
            Self::TurnsABit => bytes[length - 4097] ^= 1,
        }
        fs::write(file, bytes).unwrap();
        File::open(file).unwrap().sync_all().unwrap();
    }

    /// Whether it takes all of the object to be read to find it. In the first part the table is read, too.
    fn is_in_the_middle(self) -> bool {
        matches!(self, Self::TurnsABit)
    }

    /// Whether a part that has something behind its end is as good as one that has not.
    fn is_harmless_to_readers(self) -> bool {
        matches!(self, Self::KeepsMore)
    }
}

struct Liar {
    bench: Bench,
    pool: Pool,
    _rig: Rig,
}

impl Liar {
    fn new(read_back: bool) -> Self {
        let (bench, rig) = (Bench::s3s(), Rig::two());
        let pool = rig.create();
        let mut options = bench.options("one");
        // One after the other, so that the part that another is copied from is there.
        (options.read_back, options.parts_at_once) = (read_back, 1);
        pool.set_archive(bench.open(options).unwrap()).unwrap();
        Self { bench, pool, _rig: rig }
    }

    fn file(&self, id: ObjectId, part: u32) -> PathBuf {
        let pool = uuid::Uuid::from_u128(self.pool.id());
        let directory = self.bench.files.as_ref().unwrap().join(format!("some/prefix/{pool}"));
        directory.join(key(id, part))
    }

    fn commit(&self) -> ObjectId {
        let mut writer = self.pool.allocate_mblock(Capacity, IT.length as u64).unwrap();
        writer.append(&IT.bytes()).unwrap();
        writer.commit().unwrap().id()
    }

    /// Archives an object of which one part is not kept as it is acknowledged.
    fn archive(&self, lie: Lie, part: u32) -> (ObjectId, Result<(), MoveError>) {
        let id = self.commit();
        let other = if part == 0 { self.elsewhere() } else { self.file(id, part - 1) };
        let fault = lie.fault(&self.file(id, part), &other);
        // The first part's key is where the others' begin.
        let skip = 0;
        let target = key(id, part);
        let rule = Rule { method: Method::PUT, target, skip, times: 1, fault };
        self.bench.proxy.follow([rule]);
        let moved = self.pool.move_to_archive(id).map(drop);
        assert_eq!(self.bench.proxy.fired(), 1, "{lie:?} of part {part}");
        self.bench.proxy.follow([]);
        (id, moved)
    }

    /// The first part of another object.
    fn elsewhere(&self) -> PathBuf {
        let id = self.commit();
        self.pool.move_to_archive(id).unwrap();
        self.file(id, 0)
    }
}

fn key(id: ObjectId, part: u32) -> String {
    let rest = if part == 0 { String::new() } else { format!(".{part:06}") };
    format!("{:016x}{rest}", id.0)
}

#[test]
fn what_a_store_only_acknowledges_is_not_given_away() {
    for read_back in [true, false] {
        let liar = Liar::new(read_back);
        for lie in LIES {
            for part in PARTS {
                let what = format!("{lie:?} of part {part}, read back: {read_back}");
                let (id, moved) = liar.archive(lie, part);
                if (read_back && lie.is_harmless_to_readers())
                    || (!read_back && lie.is_in_the_middle())
                {
                    moved.unwrap_or_else(|error| panic!("{what}: {error}"));
                    continue;
                }
                let Err(error) = moved else { panic!("{what}: it is moved") };
                assert!(matches!(error, MoveError::NotKept { .. }), "{what}: {error}");
                let text = error.to_string();
                assert!(text.contains(&key(id, part)), "{what}: {text}");
                assert!(text.contains("stays where it is"), "{what}: {text}");
                let object = liar.pool.get(id).unwrap();
                assert_eq!((object.class(), read(&object)), (Capacity, IT.bytes()), "{what}");
                drop(object);

                // What the message says to do helps.
                let _ = fs::remove_file(liar.file(id, part));
                liar.pool.move_to_archive(id).unwrap_or_else(|error| panic!("{what}: {error}"));
                let object = liar.pool.get(id).unwrap();
                assert_eq!((object.class(), read(&object)), (Archive, IT.bytes()), "{what}");
            }
        }
        if read_back {
            assert!(liar.pool.verify().findings.is_empty());
        }
    }
}

#[test]
fn to_look_at_each_part_costs_one_request() {
    let counts = [true, false].map(|read_back| {
        let liar = Liar::new(read_back);
        let id = liar.commit();
        liar.bench.proxy.follow([]);
        liar.pool.move_to_archive(id).unwrap();
        assert_eq!(liar.bench.proxy.requests(&Method::PUT), 5);
        liar.bench.proxy.requests(&Method::GET)
    });
    // The head and table of the first; then each part, or each part's header and content.
    assert_eq!(counts, [1 + 4 + 5, 1 + 5]);
}
