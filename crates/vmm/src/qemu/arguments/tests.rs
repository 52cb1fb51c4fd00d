//! Real command lines, and what becomes of them.

use proptest::prelude::*;

use super::*;

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

fn disk(names: &[&str]) -> DiskReplacement {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    DiskReplacement { names, path: "/new,1.qcow2".into(), format: "qcow2".into() }
}

fn arguments(line: &str) -> RestoreArguments {
    let disks = vec![disk(&["/d.img", "drive0", "libvirt-1-format"])];
    RestoreArguments { saved: words(line), disks, ..RestoreArguments::default() }
}

fn restored(arguments: &RestoreArguments) -> Result<RestoredArguments, ArgumentError> {
    arguments.rewrite(Path::new("/m/1.sock"))
}

const END: &str = " -incoming defer -S -chardev \
                   socket,id=bindery-monitor,server=on,wait=off,path=/m/1.sock -mon \
                   chardev=bindery-monitor,mode=control";

/// Checks a line and the one that is made of it.
#[track_caller]
fn check(line: &str, expected: &str) -> RestoredArguments {
    let made = restored(&arguments(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
    let text = made.words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>();
    assert_eq!(text.join(" "), format!("{expected}{END}"), "{line}");
    made
}

#[test]
fn real_command_lines_are_rewritten() {
    const NEW: &str = "/new,,1.qcow2";
    check("qemu -m 1G -nographic", "qemu -m 1G -nographic");
    check(
        "/usr/bin/qemu-system-x86_64 --enable-kvm -m 1G -drive file=/d.img,format=raw,if=virtio -S",
        &format!(
            "/usr/bin/qemu-system-x86_64 -enable-kvm -m 1G -drive \
             if=virtio,file={NEW},format=qcow2"
        ),
    );
    check("qemu /d.img", &format!("qemu -drive index=0,media=disk,file={NEW},format=qcow2"));
    check(
        "qemu -hdb /d.img -cdrom /cd.iso -boot d",
        &format!("qemu -drive index=1,media=disk,file={NEW},format=qcow2 -cdrom /cd.iso -boot d"),
    );
    // q35, with a disk by id, and firmware that nobody writes.
    let made = check(
        "qemu -machine q35,accel=kvm -drive if=pflash,format=raw,readonly=on,file=/OVMF.fd -drive \
         id=drive0,if=none,file=/other.qcow2 -device virtio-blk-pci,drive=drive0 -netdev \
         tap,id=n0,ifname=tap0,script=no -device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01 \
         -uuid 0-1 -daemonize -pidfile /p -incoming tcp:0:4444",
        &format!(
            "qemu -machine q35,accel=kvm -drive if=pflash,format=raw,readonly=on,file=/OVMF.fd -drive \
             id=drive0,if=none,file={NEW},format=qcow2 -device virtio-blk-pci,drive=drive0 -netdev \
             tap,id=n0,ifname=tap0,script=no -device \
             virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01 -uuid 0-1"
        ),
    );
    assert_eq!(made.dropped, ["-daemonize", "-pidfile /p"]);
    let (tap, mac) = ("tap,id=n0,ifname=tap0,script=no".into(), "52:54:00:00:00:01".into());
    let shared = [
        SharedIdentity::Network(tap),
        SharedIdentity::Mac(mac),
        SharedIdentity::Uuid("0-1".into()),
        SharedIdentity::RandomNumbers,
    ];
    assert_eq!(made.shared, shared);
    // microvm, and a monitor of Bindery's from before.
    check(
        "qemu -M microvm,acpi=off -kernel /k -append console=ttyS0 -nodefaults -no-user-config -serial stdio \
         -blockdev driver=file,filename=/d.img,node-name=f0 -device virtio-blk-device,drive=f0 \
         -chardev socket,id=bindery-monitor,server=on,wait=off,path=/old -mon \
         chardev=bindery-monitor,mode=control",
        &format!(
            "qemu -M microvm,acpi=off -kernel /k -append console=ttyS0 -nodefaults -no-user-config -serial \
             stdio -blockdev driver=file,filename={NEW},node-name=f0-file -blockdev \
             driver=qcow2,node-name=f0,file=f0-file -device virtio-blk-device,drive=f0"
        ),
    );
}

#[test]
fn a_line_of_libvirts_gets_its_overlay() {
    let line = concat!(
        r#"/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -S -object "#,
        r#"{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/key"} -machine pc-q35-7.2,dump-guest-core=off "#,
        r#"-blockdev {"driver":"file","filename":"/base.qcow2","node-name":"libvirt-2-storage"} "#,
        r#"-blockdev {"node-name":"libvirt-2-format","read-only":true,"driver":"qcow2","file":"libvirt-2-storage"} "#,
        r#"-blockdev {"driver":"file","filename":"/x.img","node-name":"libvirt-1-storage","auto-read-only":true} "#,
        r#"-blockdev {"node-name":"libvirt-1-format","read-only":false,"driver":"raw","file":"libvirt-1-storage","backing":"libvirt-2-format"} "#,
        r#"-device {"driver":"virtio-blk-pci","drive":"libvirt-1-format","id":"virtio-disk0"} -msg timestamp=on"#,
    );
    let mut arguments = arguments(line);
    arguments.name = Some("copy".into());
    let made = restored(&arguments).unwrap();
    let text: Vec<_> = made.words.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let values = |of: &str| {
        let at = text.iter().enumerate().filter(|(_, word)| *word == of);
        at.map(|(at, _)| text[at + 1].clone()).collect::<Vec<_>>()
    };
    assert_eq!(values("-name"), ["guest=copy,debug-threads=on"]);
    let nodes: Vec<serde_json::Value> =
        values("-blockdev").iter().map(|node| serde_json::from_str(node).unwrap()).collect();
    assert_eq!(nodes.len(), 4);
    assert_eq!(
        (&nodes[0]["filename"], &nodes[1]["driver"]),
        (&"/base.qcow2".into(), &"qcow2".into())
    );
    assert_eq!(nodes[2]["filename"], "/new,1.qcow2");
    assert_eq!(nodes[3]["driver"], "qcow2");
    assert!(nodes[3].get("backing").is_none(), "the overlay names its own");
}

#[test]
fn generation_ids_are_drawn_anew() {
    for (device, renewed) in [
        ("vmgenid", "driver=vmgenid,guid=auto"),
        ("vmgenid,guid=auto,id=g", "driver=vmgenid,guid=auto,id=g"),
        ("vmgenid,id=g,guid=324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87", "driver=vmgenid,id=g,guid=auto"),
        (r#"{"driver":"vmgenid","guid":"1-2"}"#, r#"{"driver":"vmgenid","guid":"auto"}"#),
    ] {
        let line = format!("qemu -device {device}");
        let made = check(&line, &format!("qemu -device {renewed}"));
        assert_eq!(made.shared, [], "{device}");
        assert!(has_generation_id(&words(&line)));
    }
    let made = check("qemu -device e1000,id=vmgenid", "qemu -device e1000,id=vmgenid");
    assert_eq!(made.shared, [SharedIdentity::RandomNumbers]);
    assert!(!has_generation_id(&words("qemu -name vmgenid -m 1G")));
}

#[test]
fn what_two_cannot_have_is_refused_by_name() {
    for (line, named) in [
        ("qemu -snapshot", "-snapshot"),
        ("qemu -drive file=/d.img,snapshot=on", "-drive"),
        ("qemu -qmp unix:/q.sock,server=on,wait=off", "-qmp unix:/q.sock"),
        ("qemu -qmp unix:/q.sock,server,nowait", "-qmp"),
        ("qemu -monitor telnet:127.0.0.1:55555,server,nowait", "-monitor"),
        ("qemu -serial file:/tmp/console", "-serial file:/tmp/console"),
        ("qemu -serial /dev/ttyS0", "-serial"),
        ("qemu -chardev socket,id=a,path=/s,server=on", "-chardev"),
        ("qemu -chardev file,id=a,path=/log", "-chardev"),
        ("qemu -chardev pty,id=a,logfile=/log", "-chardev"),
        ("qemu -chardev socket,id=a,fd=3", "descriptor"),
        ("qemu -chardev new,id=a", "shape"),
        ("qemu -netdev tap,fd=33,id=a", "descriptor"),
        ("qemu -netdev socket,id=a,listen=:1234", "-netdev"),
        ("qemu -vnc :1", "-vnc"),
        ("qemu -display vnc=:1", "-display"),
        ("qemu -spice port=5900", "-spice"),
        ("qemu -gdb tcp::1234", "-gdb"),
        ("qemu -s", "-s"),
        (
            "qemu -object memory-backend-file,id=a,size=1G,share=on,mem-path=/m",
            "memory-backend-ram",
        ),
        ("qemu -add-fd fd=3,set=1", "descriptor"),
        ("qemu -readconfig /f", "-readconfig"),
        ("qemu -drive file=/unknown.img", "no image of it"),
        ("qemu -hda /unknown.img", "-hda /unknown.img"),
        ("qemu -blockdev driver=file,filename=/u,node-name=a", "-blockdev"),
        ("qemu -blockdev driver=nbd,node-name=drive0,server.type=unix", "driver"),
        ("qemu -blockdev {broken", "-blockdev"),
        ("qemu -future on", "-future"),
        ("qemu -m", "lacks its value"),
        ("", "empty"),
    ] {
        let error = restored(&arguments(line)).expect_err(line).to_string();
        assert!(error.contains(named), "{line}: {error}");
    }
}

#[test]
fn what_the_caller_gives_takes_the_place() {
    let line = "qemu -serial file:/tmp/console -chardev socket,id=a,path=/s,server=on -chardev \
                pty,id=b -drive file=/unknown.img,id=d -vnc :1";
    let mut arguments = arguments(line);
    arguments.instead = words(
        "-serial null -chardev socket,id=a,path=/t,server=on -drive file=/mine.img,id=d -vnc :2 -m 2G",
    );
    let made = restored(&arguments).unwrap();
    let text = made.words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>();
    let expected = "qemu -chardev pty,id=b -serial null -chardev socket,id=a,path=/t,server=on -drive \
                    file=/mine.img,id=d -vnc :2 -m 2G";
    assert_eq!(text.join(" "), format!("{expected}{END}"));
    for wrong in ["-incoming tcp:0:1", "-S", "-snapshot", "-daemonize"] {
        arguments.instead = words(wrong);
        assert!(matches!(restored(&arguments), Err(ArgumentError::NotGiven(_))), "{wrong}");
    }
}

proptest! {
    /// Whatever is made can be saved and restored again, and is the same then.
    #[test]
    fn a_restored_line_is_restored_as_it_is(
        picked in prop::collection::vec(
            prop::sample::select(vec![
                "-m 1G", "-S", "-nodefaults", "-drive file=/d.img,if=virtio", "-hda /d.img", "/d.img",
                "-blockdev driver=file,filename=/d.img,node-name=f", "-cdrom /c", "-serial mon:stdio",
                "-nic user,mac=1", "-device vmgenid,guid=1-2", "-uuid 1", "-name a,process=b", "-incoming defer", "-daemonize",
                "-chardev pty,id=x", "-device virtio-net-pci,mac=7", "-qmp tcp:h:1", "-drive if=none,id=e",
            ]),
            0..8,
        ),
        name in prop::option::of("[a-z]{1,4}"),
    ) {
        let mut first = arguments(&format!("qemu {}", picked.join(" ")));
        first.name = name;
        if let Ok(made) = restored(&first) {
            let mut again = first.clone();
            again.saved = made.words.clone();
            again.disks = vec![disk(&["/new,1.qcow2"])];
            prop_assert_eq!(restored(&again).map(|made| made.words), Ok(made.words));
        }
    }

    #[test]
    fn no_words_stop_the_reader(line in "(-{0,2}[a-zA-Z-]{0,9}|[{}a-z=,:\"./]{1,20}| ){0,12}") {
        let _ = restored(&arguments(&line));
    }
}
