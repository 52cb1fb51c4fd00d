//! The units of the package under systemd itself, in a guest: they start, serve, reload, come back after
//! they were killed, and stop, with the rights that they are left with.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::time::{Duration, Instant};

use bindery_testkit::bindery::Bindery;
use bindery_testkit::guest::{CustomImage, Kernel, Kit, Qemu, QemuGuest, SYSTEMD};
use bindery_testkit::skipped;

/// How long a guest may take to boot, and anything in it, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

const DAEMON: &str = include_str!("../../../packaging/bindery.service");
const PILOT: &str = include_str!("../../../packaging/bindery-ksm.service");

/// Whose place the first process takes that guests otherwise have.
const AGENT: &str = "\
[Unit]
DefaultDependencies=no
After=basic.target
[Service]
ExecStartPre=/usr/lib/busybox mount -t tmpfs tmp /tmp
ExecStartPre=/usr/lib/busybox --install -s /usr/lib/busybox-bin
ExecStart=/usr/bin/guest_agent serve
Environment=PATH=/usr/bin:/usr/sbin:/usr/lib/busybox-bin
";

const SETTINGS: &str = "http = \"127.0.0.1:9480\"\ngroup = \"bindery\"\nworkers = 2\n";

const HEALTH: &str = "wget -q -O - http://127.0.0.1:9480/healthz";

/// A guest whose first process is systemd; `None`, loudly, where that cannot be.
fn boot(bindery: &Bindery) -> Option<(QemuGuest, tempfile::TempDir)> {
    let kit = Kit::locate().map_err(|error| skipped!("{error}")).ok()?;
    let directory = tempfile::tempdir().unwrap();
    let image = CustomImage::new(&kit, Kernel::Backports, directory.path())
        .and_then(|image| image.program(bindery.program())?.part(SYSTEMD))
        .map_err(|error| skipped!("the units under systemd: {error}"))
        .ok()?
        .text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        .text("etc/group", "root:x:0:\nbindery:x:990:\n")
        .text("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
        .text("etc/bindery/bindery.toml", SETTINGS)
        .text("etc/systemd/system/bindery.service", DAEMON)
        .text("etc/systemd/system/bindery-ksm.service", PILOT)
        .text("etc/systemd/system/agent.service", AGENT)
        .link("etc/systemd/system/basic.target.wants/agent.service", "../agent.service")
        .link("etc/systemd/system/default.target", "/usr/lib/systemd/system/basic.target")
        // ExecReload=, and nothing else of the package procps.
        .link("usr/bin/kill", "../lib/busybox")
        .link("init", "/usr/lib/systemd/systemd")
        .write()
        .unwrap();
    // QEMU 7.2 leaves wrong flags after cmpxchg16b under TCG, by which newer kernels allocate memory.
    let guest = QemuGuest::builder(&kit, &image).qemu(Qemu::V10).cpus(2).memory_mib(512).spawn();
    let mut guest = guest.unwrap();
    let boot = guest.wait_ready(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    println!("systemd is up after {:.1} s", boot.as_secs_f64());
    Some((guest, directory))
}

fn check(guest: &mut QemuGuest, script: &str) -> String {
    let done = guest.check(script);
    done.unwrap_or_else(|error| panic!("{error}\n{}", journal(guest)))
}

fn journal(guest: &mut QemuGuest) -> String {
    let words = guest.run("journalctl -u bindery -u bindery-ksm --no-pager -o cat");
    words.map_or_else(|error| error.to_string(), |output| output.stdout)
}

/// What systemd says of a unit.
fn property(guest: &mut QemuGuest, unit: &str, name: &str) -> String {
    check(guest, &format!("systemctl show --value -p {name} {unit}")).trim().to_owned()
}

/// Waits until a script says so.
fn await_so(guest: &mut QemuGuest, script: &str) {
    let deadline = Instant::now() + PATIENCE;
    while guest.run(script).unwrap().status != 0 {
        assert!(Instant::now() < deadline, "{script}: never\n{}", journal(guest));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn setting(guest: &mut QemuGuest, name: &str) -> String {
    check(guest, &format!("cat /sys/kernel/mm/ksm/{name}")).trim().to_owned()
}

#[test]
fn the_units_do_under_systemd_what_they_are_for() {
    let bindery = match Bindery::locate() {
        Ok(bindery) => bindery,
        Err(error) => return skipped!("{error}"),
    };
    let Some((mut guest, _directory)) = boot(&bindery) else { return };
    the_daemon_serves_reloads_comes_back_and_stops(&mut guest);
    what_starting_again_does_not_help_is_not_started_again(&mut guest);
    the_pilot_guards_and_puts_back(&mut guest);
    assert_eq!(guest.kernel_complaints().unwrap(), Vec::<String>::new());
}

fn the_daemon_serves_reloads_comes_back_and_stops(guest: &mut QemuGuest) {
    check(guest, "systemctl start bindery");
    let pid = property(guest, "bindery", "MainPID");
    let rights = check(guest, &format!("cat /proc/{pid}/status"));
    // CAP_CHOWN is the first of all.
    for line in ["CapEff:\t0000000000000001", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(rights.contains(line), "{line}: {rights}");
    }
    assert!(check(guest, HEALTH).contains("\"status\":\"ok\""));
    let metrics = check(guest, "wget -q -O - http://127.0.0.1:9480/metrics");
    assert!(metrics.contains("\nbindery_"), "{metrics}");
    let modes = check(guest, "ls -l /run/bindery/bindery.sock");
    assert!(modes.starts_with("srw-rw----"), "{modes}");
    check(guest, "sed -i 's/workers = 2/workers = 1/' /etc/bindery/bindery.toml");
    check(guest, "systemctl reload bindery");
    assert!(check(guest, "bindery set").contains("workers=1"));
    check(guest, &format!("kill -KILL {pid}"));
    await_so(guest, "[ $(systemctl show --value -p NRestarts bindery) = 1 ]");
    await_so(guest, HEALTH);
    check(guest, "systemctl stop bindery");
    assert_eq!(property(guest, "bindery", "Result"), "success");
}

fn what_starting_again_does_not_help_is_not_started_again(guest: &mut QemuGuest) {
    check(guest, "sed -i 's/workers = 1/workers = 0/' /etc/bindery/bindery.toml");
    assert_ne!(guest.run("systemctl start bindery").unwrap().status, 0);
    let state =
        ["Result", "ExecMainStatus", "ActiveState"].map(|name| property(guest, "bindery", name));
    assert_eq!(state, ["exit-code", "8", "failed"]);
    let words = journal(guest);
    assert!(words.contains("/etc/bindery/bindery.toml:3: workers is 1 to 256, not 0"), "{words}");
}

fn the_pilot_guards_and_puts_back(guest: &mut QemuGuest) {
    check(guest, "cd /sys/kernel/mm/ksm; echo 1 > run; echo 37 > pages_to_scan");
    check(guest, "systemctl start bindery-ksm");
    await_so(guest, "[ $(cat /sys/kernel/mm/ksm/pages_to_scan) = 500 ]");
    check(guest, "echo 77 > /sys/kernel/mm/ksm/pages_to_scan");
    await_so(guest, "journalctl -u bindery-ksm -o cat | grep 'set pages_to_scan to 77: it is 500'");
    // It is heard under all of the unit's protection who that was.
    assert!(!journal(guest).contains("does not name them"), "{}", journal(guest));
    check(guest, "grep -q '\"pages_to_scan\": 37' /run/bindery/ksm.json");
    check(guest, "systemctl kill --signal KILL bindery-ksm");
    // By the unit, before the pilot is started again.
    await_so(guest, "journalctl -u bindery-ksm -o cat | grep 'put back: pages_to_scan 37'");
    await_so(guest, "[ $(cat /sys/kernel/mm/ksm/pages_to_scan) = 500 ]");
    check(guest, "systemctl stop bindery-ksm");
    assert_eq!(property(guest, "bindery-ksm", "Result"), "success");
    assert_eq!(
        (setting(guest, "pages_to_scan").as_str(), setting(guest, "run").as_str()),
        ("37", "1")
    );
}
