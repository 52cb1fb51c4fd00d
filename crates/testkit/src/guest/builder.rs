//! A guest's hardware, as a QEMU command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GuestError, GuestImage, Kit, Qemu, QemuGuest};

/// Where QEMU takes the guest's memory from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemoryBackend {
    /// Private anonymous memory, QEMU's default.
    #[default]
    Anonymous,
    /// `memory-backend-memfd,share=on`, as vhost-user set-ups have it.
    MemfdShared,
}

/// Whether the host caches a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// `cache=none`: direct I/O from and to guest memory.
    None,
    /// `cache=writeback`, QEMU's default.
    Writeback,
}

/// How QEMU does a disk's I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AioMode {
    /// A pool of threads.
    Threads,
    /// `io_uring`.
    IoUring,
    /// Linux AIO; needs [`CacheMode::None`].
    Native,
}

/// A virtio disk. The guest sees the first as `/dev/vda`.
#[derive(Debug, Clone)]
pub struct Drive {
    /// The file behind it.
    pub path: PathBuf,
    /// `raw` or `qcow2`.
    pub format: &'static str,
    /// Whether the host caches it.
    pub cache: CacheMode,
    /// How its I/O is done.
    pub aio: AioMode,
}

/// Describes a guest; [`GuestBuilder::spawn`] starts it.
#[derive(Debug, Clone)]
#[must_use]
pub struct GuestBuilder {
    kit: Kit,
    image: GuestImage,
    qemu: Qemu,
    memory_mib: u32,
    pluggable_mib: u32,
    cpus: u32,
    machine: String,
    backend: MemoryBackend,
    memory_file: Option<PathBuf>,
    drives: Vec<Drive>,
    free_page_reporting: Option<bool>,
    launcher: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    incoming: Option<String>,
    kernel_arguments: String,
    arguments: Vec<OsString>,
}

impl GuestBuilder {
    pub(crate) fn new(kit: &Kit, image: &GuestImage) -> Self {
        Self {
            kit: kit.clone(),
            image: image.clone(),
            qemu: Qemu::V7,
            memory_mib: 256,
            pluggable_mib: 0,
            cpus: 1,
            machine: "pc".to_owned(),
            backend: MemoryBackend::Anonymous,
            memory_file: None,
            drives: Vec::new(),
            free_page_reporting: None,
            launcher: Vec::new(),
            environment: Vec::new(),
            incoming: None,
            kernel_arguments: String::new(),
            arguments: Vec::new(),
        }
    }

    /// The version of QEMU; 7.2 unless said otherwise.
    pub const fn qemu(mut self, version: Qemu) -> Self {
        self.qemu = version;
        self
    }

    /// The guest's memory; 256 MiB unless said otherwise.
    pub const fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Memory that may be plugged in while it runs, in two devices; none unless said otherwise.
    pub const fn pluggable_mib(mut self, pluggable_mib: u32) -> Self {
        self.pluggable_mib = pluggable_mib;
        self
    }

    /// The number of virtual CPUs; 1 unless said otherwise.
    pub const fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// The type of machine, with its properties; `pc` unless said otherwise.
    pub fn machine_type(mut self, machine: impl Into<String>) -> Self {
        self.machine = machine.into();
        self
    }

    /// Takes the guest's memory from a file, shared, whatever else was asked for. The file is made if it is
    /// not there.
    pub fn memory_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.memory_file = Some(path.into());
        self
    }

    /// Where QEMU takes the guest's memory from.
    pub const fn memory_backend(mut self, backend: MemoryBackend) -> Self {
        self.backend = backend;
        self
    }

    /// Adds a disk.
    pub fn drive(mut self, drive: Drive) -> Self {
        self.drives.push(drive);
        self
    }

    /// Adds a balloon, with or without free-page reporting.
    pub const fn balloon(mut self, free_page_reporting: bool) -> Self {
        self.free_page_reporting = Some(free_page_reporting);
        self
    }

    /// A command that starts QEMU, such as `bindery run --name x --`; QEMU's own command line
    /// follows it.
    pub fn launcher<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.launcher = words.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a variable to the environment of QEMU and its launcher.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Waits for another QEMU's migration at `uri` instead of booting. All else must be as at the
    /// source.
    pub fn incoming(mut self, uri: impl Into<String>) -> Self {
        self.incoming = Some(uri.into());
        self
    }

    /// Adds words to the kernel's command line.
    pub fn kernel_arguments(mut self, words: impl Into<String>) -> Self {
        self.kernel_arguments = words.into();
        self
    }

    /// Adds words to QEMU's command line.
    pub fn args<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(words.into_iter().map(Into::into));
        self
    }

    /// Starts QEMU and returns at once; [`QemuGuest::wait_ready`] waits for the guest.
    ///
    /// # Errors
    /// [`GuestError::Io`] when QEMU or the launcher cannot be started.
    pub fn spawn(self) -> Result<QemuGuest, GuestError> {
        // In /tmp by intent: a socket's path must fit into 108 bytes.
        let directory = tempfile::Builder::new()
            .prefix("bindery-guest-")
            .tempdir()
            .map_err(GuestError::io("creating a directory for the guest's sockets"))?;
        let command = self.command(directory.path());
        QemuGuest::start(command, directory)
    }

    /// Starts a QEMU by a launcher that has its command line from elsewhere and takes only what differs, behind
    /// `--`: the guest's connections, and the words that were added. It is to go on running a guest of this image.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn spawn_restored(self) -> Result<QemuGuest, GuestError> {
        let directory = tempfile::Builder::new()
            .prefix("bindery-guest-")
            .tempdir()
            .map_err(GuestError::io("creating a directory for the guest's sockets"))?;
        let mut command = self.launch(&self.launcher);
        command.arg("--");
        for (option, value) in Self::endpoints(directory.path()) {
            command.args([option, &value]);
        }
        command.args(&self.arguments);
        QemuGuest::start(command, directory)
    }

    /// Returns a command of these words in the guest's environment.
    fn launch(&self, words: &[OsString]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.env("LD_LIBRARY_PATH", self.kit.library_path(self.qemu));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn command(&self, directory: &Path) -> Command {
        let mut words = self.launcher.clone();
        words.push(self.kit.qemu(self.qemu).into());
        let mut command = self.launch(&words);
        for firmware in self.kit.firmware(self.qemu) {
            command.arg("-L").arg(firmware);
        }
        self.machine(&mut command);
        self.connections(&mut command, directory);
        self.devices(&mut command);
        if let Some(uri) = &self.incoming {
            command.args(["-incoming", uri]);
        }
        command.args(&self.arguments);
        command
    }

    fn machine(&self, command: &mut Command) {
        let memory_mib = self.memory_mib;
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.args(["-accel", "tcg,thread=multi"]);
        let more = match self.pluggable_mib {
            0 => String::new(),
            more => format!(",slots=2,maxmem={}M", memory_mib + more),
        };
        command.args(["-m", &format!("{memory_mib}M{more}"), "-smp", &self.cpus.to_string()]);
        let backend = self.backend_object();
        let in_backend = if backend.is_some() { ",memory-backend=ram" } else { "" };
        if let Some(backend) = backend {
            command.args(["-object", &backend]);
        }
        command.args(["-machine", &format!("{}{in_backend}", self.machine)]);
        command.arg("-kernel").arg(self.image.kernel());
        command.arg("-initrd").arg(self.image.initramfs());
        // A panic ends QEMU (-no-reboot), so that a waiting test hears of it. At boot Linux counts
        // timer interrupts and panics if too few came, as on a busy host they do.
        //
        // One CPU boots, and the agent brings up the others: a boot moves devices' registers about, and
        // under TCG a CPU that uses a device just then, its own timer for one, finds it by an index into a
        // table that was replaced meanwhile (QEMU commit 2865bf1c5795, in Debian's 10.0.2). QEMU aborts
        // then (`iotlb_to_section`), or writes to another device, and the CPU sleeps forever.
        let kernel = "console=ttyS0 quiet panic=-1 no_timer_check maxcpus=1";
        command.args(["-append", &format!("{kernel} {}", self.kernel_arguments)]);
    }

    /// The backend of the guest's memory, where QEMU is told one.
    fn backend_object(&self) -> Option<String> {
        let bytes = format!("size={}M,share=on", self.memory_mib);
        match (&self.memory_file, self.backend) {
            (Some(path), _) => {
                let path = path.display();
                Some(format!("memory-backend-file,id=ram,mem-path={path},{bytes}"))
            }
            (None, MemoryBackend::MemfdShared) => {
                Some(format!("memory-backend-memfd,id=ram,{bytes}"))
            }
            (None, MemoryBackend::Anonymous) => None,
        }
    }

    fn connections(&self, command: &mut Command, directory: &Path) {
        for (option, value) in Self::endpoints(directory) {
            command.args([option, &value]);
        }
        command.args(["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        command.args(["-device", "virtserialport,chardev=agent,name=bindery.agent"]);
        command.args(["-pidfile", &directory.join("qemu.pid").display().to_string()]);
    }

    /// Returns the options of sockets and files that each guest has of its own.
    fn endpoints(directory: &Path) -> [(&'static str, String); 3] {
        let at = |name: &str| directory.join(name).display().to_string();
        [
            ("-chardev", format!("file,id=console,path={}", at("console.log"))),
            ("-qmp", format!("unix:{},server=on,wait=off", at("qmp.sock"))),
            ("-chardev", format!("socket,id=agent,path={},server=on,wait=off", at("agent.sock"))),
        ]
    }

    fn devices(&self, command: &mut Command) {
        if let Some(reporting) = self.free_page_reporting {
            let reporting = if reporting { "on" } else { "off" };
            command.args([
                "-device",
                &format!("virtio-balloon-pci,id=balloon,free-page-reporting={reporting}"),
            ]);
        }
        for (number, drive) in self.drives.iter().enumerate() {
            let cache = match drive.cache {
                CacheMode::None => "none",
                CacheMode::Writeback => "writeback",
            };
            let aio = match drive.aio {
                AioMode::Threads => "threads",
                AioMode::IoUring => "io_uring",
                AioMode::Native => "native",
            };
            command.args([
                "-drive",
                &format!(
                    "if=none,id=disk{number},file={},format={},cache={cache},aio={aio}",
                    drive.path.display(),
                    drive.format,
                ),
                "-device",
                &format!("virtio-blk-pci,drive=disk{number}"),
            ]);
        }
    }
}
