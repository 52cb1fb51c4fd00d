//! Memory whose content is fetched by the thread that touches it.

#![expect(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use bindery_demand::{DemandMemory, PageSource};
use bindery_sys::memfd;
use bindery_sys::pagemap::Pagemap;
use bindery_units::PAGE_BYTES;

const PAGES: usize = 256;

/// Source that fills each page with its number plus one.
#[derive(Default)]
struct Numbers {
    around: usize,
    fetched: AtomicUsize,
    bad: Option<usize>,
    refused: AtomicBool,
}

impl PageSource for Numbers {
    fn window(&self, page: usize) -> Range<usize> {
        let start = page / (self.around + 1) * (self.around + 1);
        start..start + self.around + 1
    }

    fn fetch(&self, first_page: usize, into: &mut [u8]) -> bool {
        let pages = into.len() / PAGE_BYTES;
        if self.bad.is_some_and(|bad| (first_page..first_page + pages).contains(&bad)) {
            return false;
        }
        self.fetched.fetch_add(pages, Ordering::Relaxed);
        for (at, page) in into.chunks_exact_mut(PAGE_BYTES).enumerate() {
            let number = ((first_page + at) as u64 + 1).to_ne_bytes();
            page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number));
        }
        true
    }

    fn lost(&self, page: usize) {
        let line = format!("lost page {page}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
        self.refused.store(true, Ordering::Relaxed);
    }
}

fn numbers(source: &Arc<Numbers>) -> DemandMemory {
    DemandMemory::new("numbers", PAGES * PAGE_BYTES, Arc::<Numbers>::clone(source)).unwrap()
}

fn check(demand: &DemandMemory, page: usize) {
    let bytes = demand.view(page * PAGE_BYTES + 4088, 8).to_vec();
    assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), page as u64 + 1);
}

#[test]
fn pages_are_fetched_once_and_again_after_eviction() {
    let source = Arc::new(Numbers::default());
    let demand = numbers(&source);
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), 0);
    for _ in 0..2 {
        (0..PAGES).for_each(|page| check(&demand, page));
    }
    assert_eq!(source.fetched.load(Ordering::Relaxed), PAGES);
    demand.evict(0, PAGES / 2 * PAGE_BYTES).unwrap();
    let half = (PAGES / 2 * PAGE_BYTES) as u64;
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), half);
    (0..PAGES).for_each(|page| check(&demand, page));
    assert_eq!(source.fetched.load(Ordering::Relaxed), PAGES + PAGES / 2);
}

#[test]
fn neighbours_come_along() {
    let source = Arc::new(Numbers { around: 15, ..Numbers::default() });
    let demand = numbers(&source);
    check(&demand, 20);
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), 16 * PAGE_BYTES as u64);
    demand.evict(17 * PAGE_BYTES, PAGE_BYTES).unwrap();
    (16..32).for_each(|page| check(&demand, page));
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), 16 * PAGE_BYTES as u64);
}

#[test]
fn pages_can_be_installed_and_read_without_touching_them() {
    let source = Arc::new(Numbers::default());
    let demand = numbers(&source);
    let mut bytes = vec![0; 8 * PAGE_BYTES];
    assert_eq!(demand.read_resident(0, &mut bytes), 0);
    let mut content = vec![0; 3 * PAGE_BYTES];
    assert!(source.fetch(0, &mut content));
    check(&demand, 1);
    demand.install(0, &content).unwrap();
    // Not a page more, and those are whole.
    assert_eq!(demand.read_resident(PAGE_BYTES - 8, &mut bytes), 2 * PAGE_BYTES + 8);
    assert_eq!(bytes[..8], 1u64.to_ne_bytes());
    assert_eq!(bytes[2 * PAGE_BYTES..][..8], 3u64.to_ne_bytes());
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), 3 * PAGE_BYTES as u64);
}

#[test]
fn forgotten_pages_are_mapped_again_without_fetching() {
    let source = Arc::new(Numbers::default());
    let (demand, pagemap) = (numbers(&source), Pagemap::of_self().unwrap());
    demand.view(0, PAGES * PAGE_BYTES).touch();
    let mapped = || {
        let mut mapped = 0;
        demand
            .runs_mapped(&pagemap, 0, PAGES * PAGE_BYTES, &mut |_, pages| mapped += pages)
            .unwrap();
        mapped
    };
    assert_eq!(mapped(), PAGES as u64);
    demand.forget(0, PAGES * PAGE_BYTES).unwrap();
    assert_eq!(mapped(), 0);
    (0..PAGES).for_each(|page| check(&demand, page));
    assert_eq!(source.fetched.load(Ordering::Relaxed), PAGES);
}

#[test]
fn a_fault_may_map_what_was_touched_alone() {
    let source = Arc::new(Numbers::default());
    let (demand, pagemap) = (numbers(&source), Pagemap::of_self().unwrap());
    let mapped = || {
        let mut mapped = Vec::new();
        let keep = &mut |first, pages| mapped.extend(first..first + pages);
        demand.runs_mapped(&pagemap, 0, PAGES * PAGE_BYTES, keep).unwrap();
        mapped
    };
    demand.view(0, PAGES * PAGE_BYTES).touch();
    demand.forget(0, PAGES * PAGE_BYTES).unwrap();
    check(&demand, 40);
    assert!(mapped().len() > 1);
    for _ in 0..2 {
        if let Err(error) = demand.fault_singly() {
            bindery_testkit::skipped!("a fault maps neighbours in this kernel: {error}");
            return;
        }
    }
    demand.forget(0, PAGES * PAGE_BYTES).unwrap();
    // One that is absent, whose neighbours are not.
    demand.evict(70 * PAGE_BYTES, PAGE_BYTES).unwrap();
    [3, 40, 70].iter().for_each(|page| check(&demand, *page));
    assert_eq!(mapped(), [3, 40, 70]);
    assert_eq!(source.fetched.load(Ordering::Relaxed), PAGES + 1);
    (0..PAGES).for_each(|page| check(&demand, page));
    demand.evict(0, PAGES * PAGE_BYTES).unwrap();
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), 0);
    (0..PAGES).for_each(|page| check(&demand, page));
}

#[test]
fn two_mappings_share_what_either_fetched() {
    let (one, two) = (Arc::new(Numbers::default()), Arc::new(Numbers::default()));
    let first = numbers(&one);
    let file = first.file().try_clone().unwrap();
    let second =
        DemandMemory::attach(file, PAGES * PAGE_BYTES, Arc::<Numbers>::clone(&two)).unwrap();
    (0..PAGES / 2).for_each(|page| check(&first, page));
    (0..PAGES).for_each(|page| check(&second, page));
    (0..PAGES).for_each(|page| check(&first, page));
    let fetched = [one, two].map(|source| source.fetched.load(Ordering::Relaxed));
    assert_eq!(fetched, [PAGES / 2, PAGES / 2]);
}

#[test]
fn files_of_another_kind_or_length_are_refused() {
    let attach = |file| {
        let source = Arc::new(Numbers::default());
        DemandMemory::attach(file, PAGES * PAGE_BYTES, source).unwrap_err().to_string()
    };
    assert!(attach(memfd::create("short", 4096).unwrap()).contains("length"));
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    assert!(attach(file).contains("fixed length"));
}

#[test]
fn threads_touch_and_evict_at_once() {
    let source = Arc::new(Numbers { around: 3, ..Numbers::default() });
    let demand = numbers(&source);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !done.load(Ordering::Relaxed) {
                demand.evict(at % PAGES * PAGE_BYTES, PAGE_BYTES).unwrap();
                at += 7;
            }
        });
        // Mappings come and go while faults of others are served.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                check(&numbers(&Arc::new(Numbers::default())), 9);
            }
        });
        let readers = [1, 3, 5, 11].map(|step| {
            let demand = &demand;
            scope.spawn(move || (0..40 * PAGES).for_each(|at| check(demand, at * step % PAGES)))
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
}

/// Runs the test `name` of this program again, in a process that may end; `None` in that process.
fn in_child(name: &str) -> Option<Output> {
    if std::env::var_os("BINDERY_DEMAND_CHILD").is_some() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    Some(command.env("BINDERY_DEMAND_CHILD", "1").output().unwrap())
}

#[test]
fn touching_a_lost_page_reports_and_ends_the_process() {
    if let Some(output) = in_child("touching_a_lost_page_reports_and_ends_the_process") {
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
        assert!(told.contains("neighbours are there") && told.contains("lost page 7"), "{told}");
        return;
    }
    let source = Arc::new(Numbers { around: 15, bad: Some(7), ..Numbers::default() });
    let demand = numbers(&source);
    (0..PAGES).filter(|page| *page != 7).for_each(|page| check(&demand, page));
    assert!(!source.refused.load(Ordering::Relaxed));
    eprintln!("neighbours are there");
    check(&demand, 7);
}

#[test]
fn locking_all_memory_fills_none_with_zeros() {
    if let Some(output) = in_child("locking_all_memory_fills_none_with_zeros") {
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // SAFETY: needs nothing; what it does to this process ends with it.
    let locked = unsafe { libc::mlockall(libc::MCL_FUTURE) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    let source = Arc::new(Numbers::default());
    let demand = numbers(&source);
    assert_eq!(memfd::allocated_bytes(demand.file()).unwrap(), 0);
    (0..PAGES).for_each(|page| check(&demand, page));
    demand.evict(0, PAGES * PAGE_BYTES).unwrap();
    (0..PAGES).for_each(|page| check(&demand, page));
}

#[test]
fn pages_are_not_joined_to_huge_ones() {
    let demand = numbers(&Arc::new(Numbers::default()));
    let start = format!("{:x}-", demand.view(0, 1).as_ptr().addr());
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
    let joins = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    assert_eq!(flags.split(' ').any(|flag| flag == "nh"), joins, "{flags}");
}

#[test]
fn a_bus_error_of_others_is_theirs() {
    if let Some(output) = in_child("a_bus_error_of_others_is_theirs") {
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("before"));
        return;
    }
    let demand = numbers(&Arc::new(Numbers::default()));
    check(&demand, 3);
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mapped = bindery_sys::mapped::MappedFile::map(std::os::fd::AsFd::as_fd(&file), PAGE_BYTES);
    eprintln!("before");
    let _ = mapped.unwrap().view(0, 1).byte(0);
}

#[test]
fn a_child_does_not_have_the_memory() {
    let Some(output) = in_child("a_child_does_not_have_the_memory") else {
        let source = Arc::new(Numbers::default());
        let demand = numbers(&source);
        let page = demand.view(5 * PAGE_BYTES, 1);
        // SAFETY: the child only touches memory and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _ = page.byte(0);
            // SAFETY: leaves without a word.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the status is writable, the child is ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
        check(&demand, 5);
        return;
    };
    assert!(output.status.success(), "{output:?}");
}
