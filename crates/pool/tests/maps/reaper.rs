//! Who stays in memory and who goes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bindery_pool::map::{BackEndKind, Map, MapOptions, Maps, PageRun, Temperature};
use bindery_pool::object::Object;
use bindery_pool::reaper::{Grain, Limit, Memory, Reaper, ReaperSettings, ReaperStatistics, Sweep};
use bindery_units::PAGE_BYTES;

use crate::support::{Bench, bytes, purge, row};
use crate::{BOTH, KIB, MIB, fixed};

const COUNT: u64 = 32;
const OBJECT_BYTES: u64 = 128 * KIB;

fn budget(bytes: u64) -> ReaperSettings {
    ReaperSettings { budget_bytes: Some(bytes), ..ReaperSettings::default() }
}

fn load(map: &Map) {
    let all = |object| PageRun { object, first_page: 0, pages: u64::MAX };
    map.prefetch(&(0..map.len()).map(all).collect::<Vec<_>>()).unwrap();
    (0..map.len()).for_each(|object| touch(map, object));
}

fn touch(map: &Map, object: usize) {
    let length = map.objects()[object].length_bytes() as usize;
    map.get(object, 0, length).unwrap().touch();
}

/// How many pages of each object are in memory.
fn resident(maps: &Maps, objects: &[Arc<dyn Object>]) -> Vec<u64> {
    let pages = |object: &Arc<dyn Object>| {
        let one = maps.map(std::slice::from_ref(object), Temperature::Cold, &MapOptions::default());
        one.unwrap().residency().unwrap().resident_pages
    };
    objects.iter().map(pages).collect()
}

/// All that is gone was counted, and nothing else. Only what the kernel held on to for a while, since it
/// was migrating it (compaction does, at any time), may have gone later, uncounted. Punching a memfd waits
/// for that, so nothing is stuck there.
fn account_for(gone: u64, statistics: &ReaperStatistics, kind: BackEndKind) {
    assert!(kind == BackEndKind::File || statistics.pages_stuck == 0, "{statistics:?}");
    let counted = statistics.pages_evicted..=statistics.pages_evicted + statistics.pages_stuck;
    assert!(counted.contains(&gone), "{kind:?}: {gone} gone, {statistics:?}");
    assert_eq!(statistics.errors, 0, "{kind:?}: {statistics:?}");
}

/// Ticks once a (virtual) second, with something done before each.
fn seconds(sweep: &mut Sweep, at: std::ops::Range<u64>, memory: Memory, mut between: impl FnMut()) {
    for second in at {
        between();
        sweep.tick(Duration::from_secs(second), &memory);
    }
}

#[test]
fn what_is_hot_stays_though_it_never_faults_from_the_device() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, COUNT, OBJECT_BYTES, OBJECT_BYTES);
    for kind in BOTH {
        let maps = Maps::default();
        let map = maps.map(&objects, Temperature::Cold, &fixed(kind)).unwrap();
        load(&map);
        let mut sweep = Sweep::new(&maps, budget(COUNT / 2 * OBJECT_BYTES)).unwrap();
        // Every third is used all the time, and all of them are of one age and temperature.
        let hot = || (0..COUNT as usize).step_by(3).for_each(|object| touch(&map, object));
        seconds(&mut sweep, 0..30, Memory::default(), hot);
        let left = map.residency().unwrap().resident_pages;
        assert!(left <= COUNT / 2 * 32, "{kind:?}: {left} pages left");
        let statistics = sweep.statistics();
        account_for(COUNT * 32 - left, statistics, kind);
        assert_eq!(statistics.limit, Some(Limit::Budget));
        if kind == BackEndKind::File {
            let resident = resident(&maps, &objects);
            let kept: Vec<_> = (0..COUNT as usize).filter(|at| resident[*at] > 0).collect();
            assert!((0..COUNT as usize).step_by(3).all(|hot| kept.contains(&hot)), "{kept:?}");
        }
        // Nothing that is used was read again.
        let before = map.residency().unwrap();
        hot();
        assert_eq!(map.residency().unwrap(), before, "{kind:?}");
    }
}

#[test]
fn pages_that_are_used_stay_though_their_objects_are_used_alike() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, COUNT, OBJECT_BYTES, OBJECT_BYTES);
    for kind in BOTH {
        let maps = Maps::default();
        let map = maps.map(&objects, Temperature::Warm, &fixed(kind)).unwrap();
        purge(&map);
        let settings =
            ReaperSettings { grain: Grain::Page, ..budget(COUNT * OBJECT_BYTES / 4 * 3) };
        let mut sweep = Sweep::new(&maps, settings).unwrap();
        // Of each object the first half: as far apart from the rest as a fault of either kind maps.
        let hot = || {
            (0..COUNT as usize)
                .for_each(|object| map.get(object, 0, 16 * PAGE_BYTES).unwrap().touch());
        };
        seconds(&mut sweep, 0..10, Memory::default(), hot);
        assert_eq!(sweep.statistics().pages_evicted, 0, "{kind:?}");
        load(&map);
        seconds(&mut sweep, 10..20, Memory::default(), hot);
        let left = map.residency().unwrap().resident_pages;
        assert!(left <= COUNT * 32 / 4 * 3, "{kind:?}: {left} pages left");
        let statistics = sweep.statistics();
        account_for(COUNT * 32 - left, statistics, kind);
        // Nothing that is used was read again.
        hot();
        assert_eq!(map.residency().unwrap().resident_pages, left, "{kind:?}");
    }
}

#[test]
fn reported_accesses_keep_pages_and_a_scan_does_not_push_them_out() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, COUNT, OBJECT_BYTES, OBJECT_BYTES);
    for kind in BOTH {
        let maps = Maps::default();
        let options = MapOptions { accesses_are_reported: true, ..fixed(kind) };
        let map = maps.map(&objects, Temperature::Warm, &options).unwrap();
        purge(&map);
        let budget_pages = COUNT * 32 / 2;
        let settings =
            ReaperSettings { grain: Grain::Page, ..budget(budget_pages * PAGE_BYTES as u64) };
        let mut sweep = Sweep::new(&maps, settings).unwrap();
        sweep.tick(Duration::ZERO, &Memory::default());
        let read = |page: u64| {
            let (object, page) = ((page / 32) as usize, page % 32);
            _ = map.get(object, page * PAGE_BYTES as u64, 1).unwrap().byte(0);
        };
        // Every eighth page is read all the time, and all of them one after the other.
        let hot = || (0..COUNT * 32).step_by(8).for_each(read);
        for at in 0..20 * COUNT {
            hot();
            (0..32).for_each(|page| read(at % COUNT * 32 + page));
            sweep.tick(Duration::from_millis(20 * at), &Memory::default());
            let resident = map.residency().unwrap().resident_pages;
            assert!(resident <= budget_pages, "{kind:?}: {resident} pages");
        }
        let before = sweep.statistics().misses;
        hot();
        sweep.tick(Duration::from_secs(100), &Memory::default());
        let statistics = sweep.statistics();
        // All misses were the scan's.
        assert_eq!(statistics.misses, before, "{kind:?}");
        assert!(statistics.misses_saved > 0, "{kind:?}: {statistics:?}");
        assert_eq!(statistics.errors, 0, "{kind:?}: {statistics:?}");
    }
}

#[test]
fn memory_that_others_gave_back_is_noticed() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, COUNT, OBJECT_BYTES, OBJECT_BYTES);
    let maps = Maps::default();
    let options = MapOptions { accesses_are_reported: true, ..MapOptions::default() };
    let map = maps.map(&objects, Temperature::Warm, &options).unwrap();
    load(&map);
    let settings = ReaperSettings { grain: Grain::Page, ..budget(4 * COUNT * OBJECT_BYTES) };
    let mut sweep = Sweep::new(&maps, settings).unwrap();
    seconds(&mut sweep, 0..2, Memory::default(), || ());
    assert_eq!(sweep.statistics().resident_pages, map.residency().unwrap().resident_pages);
    purge(&map);
    seconds(&mut sweep, 2..20, Memory::default(), || ());
    assert_eq!(sweep.statistics().resident_pages, 0);
}

#[test]
fn the_colder_go_first_and_the_pinned_never() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 4 * 8, OBJECT_BYTES, OBJECT_BYTES);
    let maps = Maps::default();
    let map = |(some, temperature)| {
        let map = maps.map(some, temperature, &fixed(BackEndKind::Memfd)).unwrap();
        load(&map);
        map
    };
    let all: Vec<Map> = objects.chunks(8).zip(Temperature::ALL).map(map).collect();
    let left = || {
        let pages = |map: &Map| map.residency().unwrap().resident_pages;
        [pages(&all[0]), pages(&all[1]), pages(&all[2]), pages(&all[3])]
    };
    let full = 8 * 32;
    // Nothing but what is pinned fits. Without pressure on it, cold lives 10 s, warm 100 s, hot 1000 s;
    // with all of it, 25 ms, 250 ms and 2.5 s.
    let mut sweep = Sweep::new(&maps, budget(8 * OBJECT_BYTES)).unwrap();
    let mut tick = |ms| _ = sweep.tick(Duration::from_millis(ms), &Memory::default());
    tick(0);
    assert_eq!(left(), [full; 4]);
    tick(24);
    assert_eq!(left(), [full; 4]);
    tick(100);
    assert_eq!(left(), [0, full, full, full]);
    tick(249);
    assert_eq!(left(), [0, full, full, full]);
    tick(400);
    assert_eq!(left(), [0, 0, full, full]);
    tick(2_600);
    assert_eq!(left(), [0, 0, 0, full]);
    tick(1_000_000_000);
    assert_eq!(left(), [0, 0, 0, full]);
    all[3].set_temperature(Temperature::Hot);
    tick(2_000_000_000);
    // No longer for ever, and no more of it than must.
    assert_eq!(left(), [0, 0, 0, full - 32]);
}

#[test]
fn no_more_goes_than_must_and_nothing_while_there_is_room() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, COUNT, OBJECT_BYTES, OBJECT_BYTES);
    let maps = Maps::default();
    let map = maps.map(&objects, Temperature::Cold, &MapOptions::default()).unwrap();
    load(&map);
    let roomy = Memory { available_bytes: Some(1 << 40), ..Memory::default() };
    let mut sweep = Sweep::new(&maps, budget(2 * COUNT * OBJECT_BYTES)).unwrap();
    seconds(&mut sweep, 0..100, roomy, || ());
    assert_eq!(map.residency().unwrap().resident_pages, COUNT * 32);
    assert_eq!(sweep.statistics().pressure, None);
    // A machine with hardly anything left but the maps' own pages.
    let scarce = COUNT * OBJECT_BYTES + MIB / 2;
    let scarce = Memory { available_bytes: Some(scarce), ..Memory::default() };
    let settings = ReaperSettings { memory_percent: Some(50), ..ReaperSettings::default() };
    let mut sweep = Sweep::new(&maps, settings).unwrap();
    seconds(&mut sweep, 0..1, scarce, || ());
    assert_eq!(sweep.statistics().limit, Some(Limit::Machine));
    let pressure = sweep.statistics().pressure.unwrap();
    assert_eq!(pressure.0, 10_000 - 10_000 * 1_111 / 5_150);
    seconds(&mut sweep, 1..2, scarce, || ());
    let left = map.residency().unwrap().resident_pages;
    // (0.5 + x) ÷ 4.5 MiB shall be 51.5%: 15 objects go, for 14 are not enough.
    let (wanted, statistics) = ((COUNT - 15) * 32, sweep.statistics());
    assert!((wanted..=wanted + statistics.pages_stuck).contains(&left), "{left}, {statistics:?}");
}

#[test]
fn a_warm_map_keeps_what_a_cold_one_shows_too() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 16, OBJECT_BYTES, OBJECT_BYTES);
    let maps = Maps::default();
    let cold = maps.map(&objects, Temperature::Cold, &MapOptions::default()).unwrap();
    let pinned = maps.map(&objects[..4], Temperature::Pinned, &MapOptions::default()).unwrap();
    load(&cold);
    let mut sweep = Sweep::new(&maps, budget(MIB)).unwrap();
    seconds(&mut sweep, 0..50, Memory::default(), || ());
    assert_eq!(pinned.residency().unwrap().resident_pages, 4 * 32);
    let left = cold.residency().unwrap().resident_pages;
    account_for(16 * 32 - left, sweep.statistics(), BackEndKind::File);
    // 3 objects more, or a part of one where the kernel held on to the rest until memory sufficed: 5%.
    let sufficient = match sweep.statistics().pages_stuck {
        0 => 4 * 32 + 3 * 32..=4 * 32 + 3 * 32,
        _ => 4 * 32 + 1..=MIB / PAGE_BYTES as u64 * 95 / 100,
    };
    assert!(sufficient.contains(&left), "{left} pages left");
}

#[test]
fn what_others_have_mapped_is_not_taken_for_evicted() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 8, OBJECT_BYTES, OBJECT_BYTES);
    // As good as another process: nothing is known of its mapping here.
    let (maps, others) = (Maps::default(), Maps::default());
    let map = maps.map(&objects, Temperature::Cold, &MapOptions::default()).unwrap();
    let theirs = others.map(&objects[..2], Temperature::Cold, &MapOptions::default()).unwrap();
    // What is written may be in large folios, and those the kernel unmaps by itself to split them.
    purge(&map);
    load(&map);
    load(&theirs);
    let mut sweep = Sweep::new(&maps, budget(4096)).unwrap();
    seconds(&mut sweep, 0..5, Memory::default(), || ());
    let statistics = sweep.statistics();
    assert_eq!(map.residency().unwrap().resident_pages, 2 * 32);
    assert_eq!((statistics.pages_evicted, statistics.resident_pages), (6 * 32, 2 * 32));
    assert!(statistics.pages_stuck >= 2 * 32);
}

#[test]
fn pressure_slows_who_fetches_until_it_ends() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 8, OBJECT_BYTES, OBJECT_BYTES);
    let maps = Maps::default();
    let map = |temperature| maps.map(&objects, temperature, &fixed(BackEndKind::Memfd)).unwrap();
    let (cold, hot, pinned) =
        (map(Temperature::Cold), map(Temperature::Hot), map(Temperature::Pinned));
    load(&pinned);
    let mut sweep = Sweep::new(&maps, budget(8 * OBJECT_BYTES)).unwrap();
    sweep.tick(Duration::ZERO, &Memory::default());
    assert_eq!(sweep.statistics().fault_delay, Duration::from_millis(3));
    let took = |map: &Map, object| {
        let start = Instant::now();
        let _ = map.get(object, 0, 1).unwrap().byte(0);
        start.elapsed()
    };
    assert!(took(&hot, 0) >= Duration::from_millis(3));
    assert_eq!(cold.prefetch_object(1).unwrap().pages, 8);
    assert_eq!(hot.prefetch_object(1).unwrap().pages, 32);
    drop(pinned);
    sweep.tick(Duration::from_secs(1), &Memory::default());
    assert_eq!(sweep.statistics().fault_delay, Duration::ZERO);
    assert_eq!(cold.prefetch_object(2).unwrap().pages, 32);
    // Some fault is fast, whatever else this machine does.
    let deadline = Instant::now() + Duration::from_secs(20);
    while took(&hot, 3) >= Duration::from_millis(3) {
        assert!(Instant::now() < deadline, "faults still wait");
        hot.purge().unwrap();
    }
}

#[test]
fn the_thread_keeps_memory_within_its_budget_and_can_be_switched_off() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 64, OBJECT_BYTES, OBJECT_BYTES);
    let maps = Maps::default();
    let map = maps.map(&objects, Temperature::Cold, &fixed(BackEndKind::Memfd)).unwrap();
    let limit = 16 * OBJECT_BYTES;
    let mut settings = budget(limit);
    settings.interval = Duration::from_millis(5);
    let reaper = Reaper::start(&maps, settings).unwrap();
    let within = || map.residency().unwrap().resident_pages * 4096 <= limit;
    let deadline = Instant::now() + Duration::from_secs(20);
    for (at, object) in objects.iter().enumerate() {
        touch(&map, at);
        assert_eq!(map.get(at, 9, 99).unwrap().to_vec(), bytes(object.id(), 9, 99));
    }
    while !within() {
        assert!(Instant::now() < deadline, "{:?}", reaper.statistics());
        thread::sleep(Duration::from_millis(5));
    }
    while reaper.statistics().pages_evicted < 48 * 32 {
        assert!(Instant::now() < deadline, "{:?}", reaper.statistics());
        thread::sleep(Duration::from_millis(5));
    }
    reaper.set_enabled(false);
    load(&map);
    // Long enough for many looks, if there were any.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(map.residency().unwrap().resident_pages, 64 * 32);
    reaper.set_enabled(true);
    while !within() {
        assert!(Instant::now() < deadline, "{:?}", reaper.statistics());
        thread::sleep(Duration::from_millis(5));
    }
}
