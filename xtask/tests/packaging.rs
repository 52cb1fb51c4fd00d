//! The package, as it is installed; and the units, as systemd sees them.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::bindery::Bindery;
use bindery_testkit::skipped;

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most exposure that `systemd-analyze` calls OK is 4.9; what the units have is far below.
const EXPOSURE_MAX: [(&str, &str); 2] = [("bindery.service", "30"), ("bindery-ksm.service", "30")];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Runs a command; `None`, and says so loudly, where there is no such program.
fn run(test: &str, command: &mut Command) -> Option<Output> {
    match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped!("{test}: {} is not installed", command.get_program().display());
            None
        }
        output => Some(output.unwrap()),
    }
}

/// Packs the programs that are built already. Where a full build was not made, or a tool is missing,
/// says so loudly.
fn package(test: &str, out: &Path) -> Option<PathBuf> {
    let programs = match Bindery::locate() {
        Ok(bindery) => bindery.program().parent().unwrap().to_owned(),
        Err(error) => {
            skipped!("{test}: {error}");
            return None;
        }
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("deb").arg("--programs").arg(programs).arg("--out").arg(out);
    // Any time will do, and no git is needed.
    let made = command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    let said = text(&made.stderr);
    if said.contains("apt install") {
        skipped!("{test}: {said}");
        return None;
    }
    assert!(made.status.success(), "{said}");
    Some(text(&made.stdout).trim_end().into())
}

#[test]
fn units_are_as_closed_as_they_say() {
    for (unit, exposure) in EXPOSURE_MAX {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", "--threshold", exposure]);
        command.arg(checkout().join("packaging").join(unit));
        let Some(output) = run("units_are_as_closed_as_they_say", &mut command) else { return };
        let said = text(&output.stdout);
        assert!(output.status.success(), "{unit}: {said}{}", text(&output.stderr));
        assert!(said.contains("OK"), "{unit}: {said}");
    }
}

#[test]
fn units_have_no_line_that_systemd_does_not_know() {
    for (unit, _) in EXPOSURE_MAX {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]);
        command.arg(checkout().join("packaging").join(unit));
        let test = "units_have_no_line_that_systemd_does_not_know";
        let Some(output) = run(test, &mut command) else { return };
        // The program need not be installed here.
        let said = text(&output.stderr);
        let wrong = said.lines().filter(|line| !line.contains("is not executable"));
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<&str>::new(), "{unit}");
    }
}

#[test]
fn scripts_of_the_package_are_shell() {
    for script in ["postinst", "prerm", "postrm"] {
        let path = checkout().join("packaging/debian").join(script);
        let checked = Command::new("sh").arg("-n").arg(path).output().unwrap();
        assert!(checked.status.success(), "{script}: {}", text(&checked.stderr));
    }
}

/// A package unpacked, and a daemon of it.
struct Installed {
    root: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Installed {
    fn unpack(package: &Path) -> Self {
        let root = tempfile::tempdir().unwrap();
        let unpacked = Command::new("dpkg-deb").arg("-x").arg(package).arg(root.path()).output();
        assert!(unpacked.unwrap().status.success());
        Self { root, daemon: None }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("usr/bin/bindery"));
        command.args(arguments).env_remove("BINDERY_SHIM").stdin(Stdio::null());
        command.env("BINDERY_SOCKET", self.path("b.sock"));
        command
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts the daemon with the configuration file of the package, and waits until it answers.
    fn start(&mut self) {
        fs::set_permissions(self.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = self.command(&["daemon", "--config"]);
        command.arg(self.path("etc/bindery/bindery.toml")).stderr(Stdio::null());
        self.daemon = Some(command.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.ask(&["status"]).status.success() {
            assert!(Instant::now() < deadline, "the daemon never answered");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn the_package_works_where_it_is_unpacked() {
    let out = tempfile::tempdir().unwrap();
    let Some(package) = package("the_package_works_where_it_is_unpacked", out.path()) else {
        return;
    };
    let mut installed = Installed::unpack(&package);
    for path in [
        "usr/include/bindery/bindery.h",
        "usr/lib/systemd/system/bindery.service",
        "usr/lib/systemd/system/bindery-ksm.service",
        "usr/lib/sysctl.d/50-bindery.conf",
        "usr/share/bash-completion/completions/bindery",
        "usr/share/zsh/vendor-completions/_bindery",
        "usr/share/fish/vendor_completions.d/bindery.fish",
        "usr/share/doc/bindery/copyright",
        "usr/share/doc/bindery/changelog.gz",
        "usr/share/man/man1/bindery.1.gz",
        "usr/share/man/man1/bindery-daemon.1.gz",
    ] {
        assert!(fs::metadata(installed.path(path)).unwrap().len() > 0, "{path}");
    }
    // Its shim is found where Debian has libraries, without a word about where.
    let doctor = text(&installed.ask(&["doctor"]).stdout);
    let shim = fs::read_dir(installed.path("usr/lib")).unwrap().find_map(|entry| {
        let shim = entry.unwrap().path().join("bindery/libbindery_shim.so");
        shim.exists().then_some(shim)
    });
    assert!(doctor.contains(shim.unwrap().to_str().unwrap()), "{doctor}");
    installed.start();
    let ran = installed.ask(&["run", "--name", "smoke", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("/bindery/libbindery_shim.so"), "{}", text(&ran.stdout));
    assert!(installed.ask(&["stop"]).status.success());
    assert!(installed.daemon.take().unwrap().wait().unwrap().success());
}

#[test]
fn dpkg_is_told_what_it_has_to_know_and_the_same_twice() {
    let test = "dpkg_is_told_what_it_has_to_know_and_the_same_twice";
    let out = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [Some(one), Some(two)] = out.each_ref().map(|out| package(test, out.path())) else {
        return;
    };
    assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap(), "two builds differ");
    let told = Command::new("dpkg-deb").args(["--field"]).arg(&one).output().unwrap();
    let fields = text(&told.stdout);
    for field in ["Depends: libc6 (>= ", "Maintainer: ", "Installed-Size: ", "passwd"] {
        assert!(fields.contains(field), "{fields}");
    }
    let listed = Command::new("dpkg-deb").arg("--contents").arg(&one).output().unwrap();
    let listed = text(&listed.stdout);
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error", "--allow-root"]).arg(&one);
    // Not every machine that packages are made on has it.
    if let Some(judged) = run(test, &mut lintian) {
        assert!(judged.status.success(), "{}", text(&judged.stdout));
    }
}
