//! A kernel that answers as a test wants: some system calls of some threads are decided by a rule.
//!
//! A seccomp filter has the kernel ask a supervisor, a thread of the same process, before each call
//! by which managed memory is changed (seccomp_unotify(2)). The supervisor lets the call happen, has
//! it fail without happening, or does something of its own meanwhile: in the same process it can do
//! the very call in the caller's place. The code under test is what is shipped, and knows nothing
//! of it.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{Arc, Mutex, mpsc},
};

use bindery_sys::table;
use libc::{
    SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF,
    seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog,
};

pub(crate) const UFFDIO_REGISTER: u64 = 0xc020_aa00;
pub(crate) const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
pub(crate) const UFFDIO_COPY: u64 = 0xc028_aa03;
pub(crate) const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
pub(crate) const UFFDIO_MOVE: u64 = 0xc028_aa05;
pub(crate) const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
pub(crate) const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// A system call that somebody is about to make.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

impl Call {
    pub(crate) fn is_ioctl(&self, request: u64) -> bool {
        self.number == libc::SYS_ioctl && self.arguments[1] == request
    }

    /// Whether it is an mmap(2) that replaces what is there.
    pub(crate) fn is_mmap_over(&self) -> bool {
        self.number == libc::SYS_mmap && self.arguments[3] & libc::MAP_FIXED as u64 != 0
    }

    /// The structure that an ioctl's argument points to, as words.
    ///
    /// # Safety
    /// The caller of the ioctl waits for the answer, and the structure has so many words.
    pub(crate) unsafe fn words(&self) -> *mut u64 {
        self.arguments[2] as *mut u64
    }

    /// Does the call, in the supervisor. Its errno, 0 if it succeeded.
    pub(crate) fn perform(&self) -> i32 {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: the call is what another thread of this process was to do, which waits for us.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        if result == -1 { io::Error::last_os_error().raw_os_error().expect("an errno") } else { 0 }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It happens.
    Go,
    /// It does not happen, and its caller is told this errno.
    Fail(i32),
}

/// Decides calls. Runs on the supervisor, which may not allocate: the caller may be in the allocator.
type Rule = Box<dyn FnMut(Call) -> Verdict + Send>;

/// The kernel as a filtered thread sees it.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Mutex<Rule>>);

impl Kernel {
    /// From now on calls are decided by `rule`.
    pub(crate) fn set_rule(&self, rule: impl FnMut(Call) -> Verdict + Send + 'static) {
        let rule: Rule = Box::new(rule);
        let before = std::mem::replace(&mut *self.0.lock().expect("no rule panics"), rule);
        drop(before);
    }

    /// From now on all calls happen.
    pub(crate) fn be_kind(&self) {
        self.set_rule(|_| Verdict::Go);
    }
}

/// Runs `work` on a thread that has the library's descriptors, and whose system calls, and those of threads that it starts, are decided by
/// the rules that it sets. Nothing is run where the kernel cannot do that.
pub(crate) fn supervised<T: Send>(work: impl FnOnce(&Kernel) -> T + Send) -> Option<T> {
    let kernel = Kernel(Arc::new(Mutex::new(Box::new(|_| Verdict::Go))));
    let (give, take) = mpsc::channel::<OwnedFd>();
    let rules = kernel.clone();
    if let Err(error) = table::start() {
        bindery_testkit::skipped!("{error}");
        return None;
    }
    // Not joined: a space's handlers live as long as the process, and so does their supervisor. It has
    // the descriptors that the calls are about.
    let supervisor = table::spawn("supervisor", move || {
        if let Ok(listener) = take.recv() {
            supervise(&listener, &rules);
        }
    });
    supervisor.expect("a thread");
    let filtered = move || {
        match filter() {
            Ok(listener) => give.send(listener).expect("the supervisor waits"),
            Err(error) => {
                bindery_testkit::skipped!("system calls cannot be supervised here: {error}");
                return None;
            }
        }
        Some(work(&kernel))
    };
    table::run_apart(filtered).expect("a thread")
}

fn supervise(listener: &OwnedFd, kernel: &Kernel) {
    loop {
        // SAFETY: the kernel wants the structure zeroed, and fills it.
        let mut asked: seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is a listener; the structure is the one expected.
        let received =
            unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
        if received != 0 {
            // A thread that is gone, or a signal.
            continue;
        }
        let call = Call { number: asked.data.nr.into(), arguments: asked.data.args };
        let verdict = (kernel.0.lock().expect("no rule panics"))(call);
        let (error, flags) = match verdict {
            Verdict::Go => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            // Zero is success, without having happened: for who did it in the caller's place.
            Verdict::Fail(errno) => (-errno, 0),
        };
        let mut answer = seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        // SAFETY: as above. It fails if who asked is gone.
        let _ =
            unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Goes on `skip` steps further if the word is not `k`.
const fn unless(k: u32, skip: u8) -> sock_filter {
    sock_filter { code: IF_EQUAL, jt: 0, jf: skip, k }
}

/// Goes on `skip` steps further if the word is `k`.
const fn when(k: u32, skip: u8) -> sock_filter {
    sock_filter { code: IF_EQUAL, jt: skip, jf: 0, k }
}

/// The low half of a call's argument (little-endian).
const fn argument(at: u32) -> sock_filter {
    step(LOAD_WORD, 16 + 8 * at)
}

/// Asks the supervisor about what changes managed memory, and about nothing that the allocator does.
fn filter() -> io::Result<OwnedFd> {
    let ask = step(RETURN, SECCOMP_RET_USER_NOTIF);
    let allow = step(RETURN, SECCOMP_RET_ALLOW);
    let mut program = [
        step(LOAD_WORD, 0),
        when(libc::SYS_mremap as u32, 22),
        when(libc::SYS_fallocate as u32, 21),
        when(libc::SYS_pwrite64 as u32, 20),
        unless(libc::SYS_ioctl as u32, 5),
        argument(1),
        when(PAGEMAP_SCAN as u32, 17),
        step(AND, 0xff00),
        when(0xaa00, 15),
        allow,
        unless(libc::SYS_mmap as u32, 6),
        // The library's own mappings are not reserved; the allocator's that are not are not readable.
        argument(3),
        step(AND, libc::MAP_NORESERVE as u32),
        unless(libc::MAP_NORESERVE as u32, 2),
        argument(2),
        when((libc::PROT_READ | libc::PROT_WRITE) as u32, 8),
        allow,
        unless(libc::SYS_madvise as u32, 5),
        argument(2),
        when(libc::MADV_DONTFORK as u32, 4),
        when(libc::MADV_NOHUGEPAGE as u32, 3),
        when(libc::MADV_POPULATE_READ as u32, 2),
        when(libc::MADV_POPULATE_WRITE as u32, 1),
        allow,
        ask,
    ];
    let code = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is a well-formed program, and only for this thread and those it starts.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const code,
        );
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(listener as i32))
    }
}
