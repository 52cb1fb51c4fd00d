use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

fn policy() -> ArgumentPolicy {
    ArgumentPolicy {
        programs: vec!["/usr/bin/qemu-system-x86_64".into()],
        paths: PathPolicy {
            allowed: vec!["/var/lib/guests".into(), "/usr/share/qemu".into()],
            rewrites: vec![("/srv/images".into(), "/var/lib/guests".into())],
        },
    }
}

fn check(arguments: &[&str]) -> Result<Vec<OsString>, ArgumentRefusal> {
    let program = ["/usr/bin/qemu-system-x86_64"];
    let all: Vec<Vec<u8>> =
        program.iter().chain(arguments).map(|argument| argument.as_bytes().to_vec()).collect();
    policy().check(&all)
}

#[test]
fn a_usual_guest_is_allowed_and_its_paths_are_rewritten() {
    let arguments = [
        "-name",
        "web,debug-threads=on",
        "-machine",
        "q35,accel=kvm,memory-backend=ram",
        "-cpu",
        "host",
        "-smp",
        "2",
        "-m",
        "1G",
        "-object",
        "memory-backend-ram,id=ram,size=1G",
        "-nodefaults",
        "-display",
        "none",
        "-drive",
        "file=/srv/images/a.qcow2,format=qcow2,if=virtio,cache=none",
        "-blockdev",
        r#"{"driver":"qcow2","node-name":"d","file":{"driver":"file","filename":"/srv/images/b"}}"#,
        "-device",
        "virtio-blk-pci,drive=d",
        "-netdev",
        "tap,id=n,ifname=tap0,script=no,downscript=no",
        "-device",
        "virtio-net-pci,netdev=n,mac=52:54:00:12:34:56",
        "-kernel",
        "/srv/images/vmlinuz",
        "-append",
        "root=/dev/vda console=ttyS0",
        "-serial",
        "null",
        "-chardev",
        "socket,id=c,path=/var/lib/guests/c.sock,server=on,wait=off",
    ];
    let checked = check(&arguments).unwrap();
    assert_eq!(checked.len(), arguments.len() + 1);
    let text = checked.iter().map(|it| it.to_str().unwrap()).collect::<Vec<_>>().join(" ");
    assert!(text.contains("file=/var/lib/guests/a.qcow2,format=qcow2"), "{text}");
    assert!(text.contains(r#""filename":"/var/lib/guests/b""#), "{text}");
    assert!(
        text.contains("-kernel /var/lib/guests/vmlinuz") && text.contains("root=/dev/vda"),
        "{text}"
    );
    assert!(!text.contains("/srv"), "{text}");
}

#[test]
fn hostile_arguments_are_refused() {
    let hostile: &[&[&str]] = &[
        &["-netdev", "tap,id=n,script=/bin/sh,downscript=no"],
        &["-netdev", "tap,id=n"],
        &["-netdev", "tap,id=n,script=no,downscript=no,helper=/bin/sh"],
        &["-netdev", "bridge,id=n,helper=/var/lib/guests/evil"],
        &["-netdev", "user,id=n,guestfwd=tcp:1.2.3.4:5-cmd:sh"],
        &["-netdev", "user,id=n,smb=/"],
        &["-netdev", "user,id=n,hostfwd=tcp::22-:22"],
        &["-netdev", r#"{"type":"tap","id":"n","script":"/bin/sh"}"#],
        &["-incoming", "exec:sh"],
        &["-plugin", "/var/lib/guests/evil.so"],
        &["-monitor", "tcp::4444,server"],
        &["-qmp", "unix:/var/lib/guests/q,server"],
        &["-gdb", "tcp::1234"],
        &["-s"],
        &["-chardev", "pipe,id=c,path=/var/lib/guests/p"],
        &["-chardev", "file,id=c,path=/etc/cron.d/x"],
        &["-chardev", "socket,id=c,host=10.0.0.1,port=25"],
        &["-chardev", "file,id=c,path=/var/lib/guests/a,logfile=/etc/passwd"],
        &["-serial", "file:/etc/cron.d/x"],
        &["-serial", "tcp:10.0.0.1:25"],
        &["-drive", "file=/etc/shadow"],
        &["-drive", "file=/var/lib/guests/../../../etc/shadow"],
        &["-drive", "file=nbd://10.0.0.1/x"],
        &["-drive", "file=ssh:host"],
        &["-drive", "file=disk.img"],
        &["-drive", r#"file=json:{"driver":"file"}"#],
        &["-drive", "file=/var/lib/guests/a,,b=/etc/shadow"],
        &["-drive", "file.filename=/etc/shadow"],
        &["-drive", "driver=nbd,server.type=inet,server.host=10.0.0.1,server.port=1"],
        &["-drive", "backing.file.filename=/etc/shadow,file=/var/lib/guests/a"],
        &["-blockdev", r#"{"driver":"file","node-name":"a","filename":"/etc/shadow"}"#],
        &["-blockdev", r#"{"driver":"file","node-name":"a","filename":"relative"}"#],
        &[
            "-blockdev",
            r#"{"driver":"nbd","node-name":"a","server":{"type":"inet","host":"10.0.0.1","port":"1"}}"#,
        ],
        &["-blockdev", r#"{"driver":"#],
        &["-device", "vfio-pci,sysfsdev=/sys/bus/pci/devices/0"],
        &["-device", "e1000,romfile=/etc/shadow"],
        &["-device", "e1000,romfile=evil.rom"],
        &["-object", "secret,id=s,file=/etc/shadow"],
        &["-object", "memory-backend-file,id=m,size=1G,mem-path=/dev/mem"],
        &["-object", "memory-backend-file,id=m,size=1G,mem-path=hugetlbfs"],
        &["-readconfig", "/var/lib/guests/c"],
        &["-fw_cfg", "name=opt/x,file=/etc/shadow"],
        &["-fsdev", "local,id=f,path=/,security_model=none"],
        &["-virtfs", "local,path=/"],
        &["-D", "/etc/cron.d/x"],
        &["-pidfile", "/etc/x"],
        &["-runas", "root"],
        &["-daemonize"],
        &["-L", "/var/lib/guests"],
        &["-set", "drive.a.file=/etc/shadow"],
        &["-acpitable", "file=/etc/shadow"],
        &["-smbios", "file=/etc/shadow"],
        &["-vnc", ":0"],
        &["-name", "../../etc"],
        &["/etc/shadow"],
        &["-drive"],
        &["-kernel", "vmlinuz"],
        &["-kernel", "/etc/shadow"],
        &["--incoming", "exec:sh"],
        &["---m", "1G"],
        &["-m=1G"],
        &["-append", "a\nb"],
    ];
    for arguments in hostile {
        assert!(check(arguments).is_err(), "{arguments:?} passes");
    }
}

#[test]
fn only_named_programs_are_started() {
    let check = |program: &str| policy().check(&[program.as_bytes().to_vec()]);
    assert!(check("/usr/bin/qemu-system-x86_64").is_ok());
    let hostile = [
        "/bin/sh",
        "qemu-system-x86_64",
        "/usr/bin/../bin/qemu-system-x86_64",
        "/usr/bin/qemu-system-x86_64/x",
        "/usr/bin/qemu-system-x86_64;sh",
        "",
        "-S",
        "/usr/bin",
    ];
    for program in hostile {
        assert!(matches!(check(program), Err(ArgumentRefusal::Program(_))), "{program:?} passes");
    }
    assert!(policy().check(&[]).is_err());
    assert!(policy().check(&[vec![0xff]]).is_err());
    let long = vec![b"/usr/bin/qemu-system-x86_64".to_vec(), vec![b'a'; 1 << 20]];
    assert!(matches!(policy().check(&long), Err(ArgumentRefusal::Shape(_))));
}

proptest! {
    /// Whatever passes names no path beyond those that are allowed.
    #[test]
    fn nothing_passes_that_names_another_path(
        option in prop::sample::select(vec![
            "-drive", "-device", "-blockdev", "-object", "-chardev", "-machine", "-kernel", "-serial", "-netdev",
        ]),
        parts in prop::collection::vec(prop::sample::select(vec![
            "file=", "filename=", "path=", "socket", "user", "id=a", ",", ",,", "/", "..", "/etc/shadow", "json:", "{", "}",
            "\"", ":", "/var/lib/guests", "/srv/images", "a", "nbd:", "=", "null", "memory-backend-file", "mem-path=",
        ]), 0..10),
    ) {
        let value = parts.concat();
        let Ok(checked) = check(&[option, &value]) else { return Ok(()) };
        let value = checked[2].to_str().unwrap();
        for (at, _) in value.match_indices('/') {
            let start = value[..at].rfind(['=', ',', '"', ':']).map_or(0, |before| before + 1);
            let end = value[at..].find([',', '"']).map_or(value.len(), |behind| at + behind);
            let path = PathBuf::from(&value[start..end]);
            prop_assert!(policy().paths.allows(&path), "{value} has {path:?}");
        }
    }
}
