//! Work handed from one thread to another that has other descriptors.
//!
//! A queue of jobs that live where their callers wait for them, under one lock that nobody keeps longer
//! than a job takes to link. Callers are woken by a futex in their own job.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use super::{IS_OURS, Kept};
use crate::event::Event;
use crate::{syscall, thread};

/// Threads that wait for work when there is none. Others end.
const IDLE_MAX: u32 = 4;

/// How long after a thread could not be started the next is tried.
const RETRY: Duration = Duration::from_millis(10);

/// What is to be done, the first field of whatever that needs.
#[repr(C)]
struct Job {
    next: *mut Job,
    /// Does it. Called once, by a thread that has taken the job off the queue.
    perform: unsafe fn(*mut Job),
}

/// Jobs that wait, first in first out, and threads that wait for them.
struct Queue {
    first: *mut Job,
    last: *mut Job,
    waiting: u32,
    idle: u32,
    /// Threads on their way to the queue.
    starting: u32,
}

// SAFETY: jobs are given to other threads: `Errands` posts those alone whose parts may go there.
unsafe impl Send for Queue {}

pub(super) struct Errands {
    queue: Mutex<Queue>,
    posted: Condvar,
    /// Notified when there are more jobs than idle threads.
    short: Condvar,
}

impl Default for Errands {
    fn default() -> Self {
        let queue = Queue { first: null_mut(), last: null_mut(), waiting: 0, idle: 0, starting: 0 };
        Self { queue: Mutex::new(queue), posted: Condvar::new(), short: Condvar::new() }
    }
}

impl Queue {
    /// # Safety
    /// The job is not in the queue and stays where it is until it was performed.
    unsafe fn push(&mut self, job: *mut Job) {
        // SAFETY: the caller's contract, for this job and for the last one.
        unsafe {
            (*job).next = null_mut();
            if self.last.is_null() {
                self.first = job;
            } else {
                (*self.last).next = job;
            }
        }
        self.last = job;
        self.waiting += 1;
    }

    fn pop(&mut self) -> Option<*mut Job> {
        let job = self.first;
        if job.is_null() {
            return None;
        }
        // SAFETY: jobs in the queue are where they were when they were pushed.
        self.first = unsafe { (*job).next };
        if self.first.is_null() {
            self.last = null_mut();
        }
        self.waiting -= 1;
        Some(job)
    }

    const fn is_short(&self) -> bool {
        self.waiting > self.idle + self.starting
    }
}

impl Errands {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    /// As [`Queue::push`]; the job may be performed by any thread.
    unsafe fn post(&self, job: *mut Job) {
        // A handler of a signal may post as well, and must not find the queue locked by this thread.
        let signals = thread::block_all_signals();
        let mut queue = self.lock();
        // SAFETY: the caller's contract.
        unsafe { queue.push(job) };
        let is_short = queue.is_short();
        drop(queue);
        self.posted.notify_one();
        if is_short {
            self.short.notify_one();
        }
        thread::restore_signals(&signals);
    }

    /// Does `work` in another thread and waits for it.
    pub(super) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let mut task = Task::new(work);
        let task = &raw mut task;
        // SAFETY: the task stays here until it was performed, which is waited for; its parts are `Send`.
        // Nobody else uses it afterwards.
        let result = unsafe {
            self.post(task.cast());
            wait_until_set(&(*task).is_done);
            (*task).result.take().expect("a performed job has a result")
        };
        result.unwrap_or_else(|panic| go_on(panic))
    }

    /// The anchor's work: starts threads while there are too few. They have its table.
    pub(super) fn start_threads_as_wanted(&'static self) {
        let mut queue = self.lock();
        loop {
            while !queue.is_short() {
                queue = self.short.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.starting += 1;
            drop(queue);
            let started = thread::spawn_without_signals("bindery-errand", || {
                IS_OURS.set(true);
                self.perform_all();
            });
            if started.is_err() {
                // Those that there are go on; there may be none yet.
                std::thread::sleep(RETRY);
            }
            queue = self.lock();
            if started.is_err() {
                queue.starting -= 1;
            }
        }
    }

    /// An errand thread's work, until there are enough others without any.
    fn perform_all(&self) {
        let mut queue = self.lock();
        queue.starting -= 1;
        loop {
            if let Some(job) = queue.pop() {
                drop(queue);
                // SAFETY: it was just taken off the queue, and so is performed once.
                unsafe { ((*job).perform)(job) };
                queue = self.lock();
                continue;
            }
            if queue.idle >= IDLE_MAX {
                return;
            }
            queue.idle += 1;
            queue = self.posted.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

/// Goes on with a panic where its message is seen.
fn go_on(panic: Box<dyn Any + Send>) -> ! {
    let text = panic.downcast_ref::<&str>().copied();
    match text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => panic!("{text}"),
        None => resume_unwind(panic),
    }
}

/// A job that its caller waits for.
#[repr(C)]
struct Task<F, R> {
    job: Job,
    is_done: AtomicU32,
    work: Option<F>,
    result: Option<Result<R, Box<dyn Any + Send>>>,
}

impl<F: FnOnce() -> R, R> Task<F, R> {
    const fn new(work: F) -> Self {
        let job = Job { next: null_mut(), perform: Self::perform };
        Self { job, is_done: AtomicU32::new(0), work: Some(work), result: None }
    }

    /// # Safety
    /// `job` is a task of this type whose caller waits for it.
    unsafe fn perform(job: *mut Job) {
        let task = job.cast::<Self>();
        // SAFETY: the caller's contract: the task is there until `is_done`, and only that is looked at by
        // its caller until then.
        let (work, result, is_done) =
            unsafe { (&mut (*task).work, &mut (*task).result, &raw const (*task).is_done) };
        let work = work.take().expect("a job is performed once");
        *result = Some(catch_unwind(AssertUnwindSafe(work)));
        // SAFETY: as above. Release, with the Acquire in `wait`: the result is seen.
        unsafe { (*is_done).store(1, Ordering::Release) };
        // The caller may be gone already, with its task: then nobody waits there, and whoever waits at the
        // same address for something else looks again, as for any wake.
        // SAFETY: a wake reads nothing.
        unsafe { syscall!(libc::SYS_futex, is_done, FUTEX_WAKE, 1, 0, 0, 0) };
    }
}

/// Waits until a flag is set, which whoever sets it wakes.
fn wait_until_set(flag: &AtomicU32) {
    // Acquire: with the Release in `perform`.
    while flag.load(Ordering::Acquire) == 0 {
        // SAFETY: the flag is there; a wait changes nothing.
        unsafe { syscall!(libc::SYS_futex, ptr::from_ref(flag), FUTEX_WAIT, 0, 0, 0, 0) };
    }
}

const FUTEX_WAIT: i32 = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
const FUTEX_WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

/// An [`Event`] of our table that any thread may notify without waiting, taking a lock for longer than a
/// few loads, or allocating.
#[repr(C)]
pub struct Bell {
    job: UnsafeCell<Job>,
    /// The job is on its way. It is changed by whoever sets this.
    is_posted: AtomicBool,
    event: Kept<Event>,
}

// SAFETY: the job is changed by one thread at a time, as `is_posted` says.
unsafe impl Send for Bell {}
// SAFETY: the same.
unsafe impl Sync for Bell {}

impl Bell {
    /// A bell that nobody has rung. It lives as long as the process: it may be on its way at any time.
    ///
    /// # Errors
    /// The kernel's, when descriptors are short.
    ///
    /// # Panics
    /// As [`run`](super::run).
    pub fn new() -> io::Result<&'static Self> {
        let job = UnsafeCell::new(Job { next: null_mut(), perform: Self::perform });
        let event = Kept::open(Event::new)?;
        Ok(Box::leak(Box::new(Self { job, is_posted: AtomicBool::new(false), event })))
    }

    /// Notifies the event, soon. What was written before is visible to whoever clears it.
    pub fn ring(&'static self) {
        if super::is_inside() {
            return self.notify();
        }
        let Some(table) = super::table() else { return };
        // AcqRel, here and in `perform`: each sees what those before it have written, and what was
        // written before the last of them is seen by whoever clears the event.
        if !self.is_posted.swap(true, Ordering::AcqRel) {
            // SAFETY: the job is not on its way, and it lives as long as the process.
            unsafe { table.errands.post(self.job.get()) };
        }
    }

    /// # Safety
    /// `job` is a bell's.
    unsafe fn perform(job: *mut Job) {
        // SAFETY: the caller's contract: the job is the first field of a bell, which is never freed.
        let bell = unsafe { &*job.cast::<Self>() };
        bell.is_posted.swap(false, Ordering::AcqRel);
        bell.notify();
    }

    fn notify(&self) {
        self.event.with(Event::notify);
    }

    #[cfg(test)]
    pub(super) fn is_on_its_way(&self) -> bool {
        self.is_posted.load(Ordering::Acquire)
    }

    /// Makes the event unreadable until the bell is rung again.
    pub fn clear(&self) {
        self.event.with(Event::clear);
    }

    /// The event, for a thread that has our table.
    ///
    /// # Panics
    /// In any other thread.
    pub fn event(&self) -> &Event {
        self.event.inside()
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Bell").field(&self.event).finish()
    }
}
