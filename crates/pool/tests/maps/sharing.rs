//! Several processes map the same objects.

use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bindery_pool::map::{BackEndKind, Map, MapOptions, Maps, PageRun, Temperature};

use crate::support::{Bench, FileDevice, bytes, from_parent, in_child, purge, row};
use crate::{KIB, fixed};

const COUNT: u64 = 32;
const PAGES: u64 = COUNT * 16;

fn prefetch_all(map: &Map) {
    let all = |object| PageRun { object, first_page: 0, pages: 16 };
    map.prefetch(&(0..COUNT as usize).map(all).collect::<Vec<_>>()).unwrap();
}

fn check_all(map: &Map) {
    for at in 0..map.len() {
        let seen = map.get(at, 0, 64 * KIB as usize).unwrap().to_vec();
        assert_eq!(seen, bytes(map.objects()[at].id(), 0, seen.len()));
    }
}

/// What this process has of the mapping that begins at `address`, in KiB, and its share of that.
fn rss_and_pss_kib(address: usize) -> (u64, u64) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let whose = format!("{address:x}-");
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&whose)).skip(1);
    let of = |name: &str| {
        let line = lines.clone().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (of("Rss:"), of("Pss:"))
}

#[test]
fn processes_share_what_either_read() {
    let name = "sharing::processes_share_what_either_read";
    let Some(told) = from_parent() else {
        let bench = Bench::new();
        let device = bench.device("one");
        let objects = row(&device, COUNT, 64 * KIB, 64 * KIB);
        for kind in crate::BOTH {
            let map = Maps::default().map(&objects, Temperature::Warm, &fixed(kind)).unwrap();
            purge(&map);
            prefetch_all(&map);
            check_all(&map);
            let memory = map.memory().map(std::os::fd::AsRawFd::as_raw_fd);
            let memory =
                memory.map_or(String::new(), |fd| format!("/proc/{}/fd/{fd}", std::process::id()));
            let output = in_child(name, &format!("{}|{memory}", device.path.display()));
            assert!(output.status.success(), "{kind:?}: {output:?}");
            // What the child evicted is fetched again.
            check_all(&map);
        }
        return;
    };
    let (path, memory) = told.split_once('|').unwrap();
    let device = Arc::new(FileDevice::open(path.as_ref()));
    let objects = row(&device, COUNT, 64 * KIB, 64 * KIB);
    let reopen = || OpenOptions::new().read(true).write(true).open(memory).unwrap();
    let memory = (!memory.is_empty()).then(reopen);
    let kind = if memory.is_some() { BackEndKind::Memfd } else { BackEndKind::File };
    let options = MapOptions { memory, ..MapOptions::default() };
    let map = Maps::default().map(&objects, Temperature::Warm, &options).unwrap();
    assert_eq!(map.back_end(), kind);
    assert_eq!(map.residency().unwrap().resident_pages, PAGES);
    check_all(&map);
    prefetch_all(&map);
    assert_eq!(device.reads.load(Ordering::Relaxed), 0, "all of it was there");
    let (rss, pss) = rss_and_pss_kib(map.get(0, 0, 1).unwrap().address().0);
    assert_eq!(rss, PAGES * 4);
    assert!(pss <= rss / 2 + 64, "{rss} KiB, {pss} of them its share");
    let left = map.purge().unwrap();
    // The other process has the file's pages mapped; a memfd's are taken from it as well.
    assert_eq!(left, if kind == BackEndKind::Memfd { 0 } else { PAGES });
}
