//! Both ends of each kind of socket, and what a peer can do wrong.

use super::*;
use std::fs::File;
use std::io::{Read, Seek, Write};

const SOON: Duration = Duration::from_secs(5);

fn file_with(text: &str) -> File {
    let fd = rustix::fs::memfd_create("socket-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn contents(fd: OwnedFd) -> String {
    let mut file = File::from(fd);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn descriptors_are_refused_from_when_on_that_is_asked_for() {
    for (a, b) in [seqpacket_pair().unwrap(), stream_pair().unwrap()] {
        let file = file_with("x");
        send(&a, b"1", &[file.as_fd()]).unwrap();
        if !refuse_descriptors(&b).unwrap() {
            return bindery_testkit::skipped!("descriptors cannot be refused before Linux 6.16");
        }
        let error = send(&a, b"2", &[file.as_fd()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        send(&a, b"3", &[]).unwrap();
        let (mut bytes, mut received) = ([0; 1], Vec::new());
        for (expected, descriptors) in [(b"1", 1), (b"3", 1)] {
            assert_eq!(receive(&b, &mut bytes, &mut received).unwrap(), 1);
            assert_eq!((&bytes, received.len()), (expected, descriptors));
        }
    }
}

#[test]
fn descriptors_arrive_in_order_and_close_on_exec() {
    let (a, b) = seqpacket_pair().unwrap();
    let files: Vec<File> = (0..FDS_MAX).map(|i| file_with(&i.to_string())).collect();
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    assert_eq!(send(&a, b"x", &fds).unwrap(), 1);

    let (mut bytes, mut received) = ([0; 8], Vec::new());
    assert_eq!(receive(&b, &mut bytes, &mut received).unwrap(), 1);
    assert_eq!(received.len(), FDS_MAX);
    for (i, fd) in received.into_iter().enumerate() {
        let flags = rustix::io::fcntl_getfd(&fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(contents(fd), i.to_string());
    }
}

#[test]
fn a_reader_who_is_slow_is_waited_for_no_longer() {
    let (a, b) = stream_pair().unwrap();
    let reader = std::thread::spawn(move || {
        let mut piece = vec![0; 16 << 10];
        // Room is made again and again, too little for all.
        while receive(&b, &mut piece, &mut Vec::new()).is_ok_and(|count| count > 0) {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let start = std::time::Instant::now();
    let sent = send_all(&a, &vec![0; 64 << 20], &[], Duration::from_millis(300));
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    shutdown(&a).unwrap();
    reader.join().unwrap();
}

#[test]
fn a_packet_longer_than_agreed_is_invalid() {
    let (a, b) = seqpacket_pair().unwrap();
    send(&a, &[7; 65], &[]).unwrap();
    let error = receive(&b, &mut [0; 64], &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    // The connection is still good for the next one.
    send(&a, &[8; 64], &[]).unwrap();
    assert_eq!(receive(&b, &mut [0; 64], &mut Vec::new()).unwrap(), 64);
}

#[test]
fn more_descriptors_than_agreed_are_invalid_and_closed() {
    let (a, b) = stream_pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let many = vec![writer.as_fd(); FDS_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
    sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();

    let mut fds = Vec::new();
    let error = receive(&b, &mut [0; 8], &mut fds).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(fds.is_empty());
    drop(writer);
    // Were one of the copies still open, the pipe would not be at its end.
    let mut reader = reader;
    assert!(wait_readable(&reader, SOON).unwrap());
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_peer_that_went_away_is_an_error_and_no_signal() {
    let (a, b) = stream_pair().unwrap();
    drop(b);
    assert_eq!(send(&a, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(receive(&a, &mut [0; 8], &mut Vec::new()).unwrap(), 0);
}

#[test]
fn a_long_send_survives_a_slow_reader_and_gives_up_on_a_dead_one() {
    let (a, b) = stream_pair().unwrap();
    let sent: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    let expected = sent.clone();
    let reader = std::thread::spawn(move || {
        let (mut all, mut part) = (Vec::new(), [0; 5000]);
        while all.len() < expected.len() {
            let count = receive(&b, &mut part, &mut Vec::new()).unwrap();
            all.extend_from_slice(&part[..count]);
        }
        assert!(all == expected);
        b
    });
    send_all(&a, &sent, &[], SOON).unwrap();
    let _b = reader.join().unwrap();
    let error = send_all(&a, &sent, &[], Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn listeners_take_connections_and_know_who_comes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    let listener = listen(&path, 4).unwrap();
    assert_eq!(listen(&path, 4).unwrap_err().kind(), io::ErrorKind::AddrInUse);

    let client = connect(&path).unwrap();
    let server = accept(&listener).unwrap();
    let us = Peer {
        pid: std::process::id() as i32,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    assert_eq!(peer(&server).unwrap(), us);
    assert_eq!(peer(&client).unwrap(), us);
    let ours: Vec<u32> = rustix::process::getgroups()
        .unwrap()
        .into_iter()
        .map(rustix::process::Gid::as_raw)
        .collect();
    assert_eq!(peer_groups(&server).unwrap(), ours);

    drop(listener);
    assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let long = directory.path().join("x".repeat(120));
    assert_eq!(connect(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn waiting_ends_with_what_is_ready_or_with_patience() {
    let (a, b) = seqpacket_pair().unwrap();
    let (c, d) = seqpacket_pair().unwrap();
    let start = Instant::now();
    assert!(!wait_readable(&a, Duration::from_millis(30)).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(30));

    send(&d, b"x", &[]).unwrap();
    let mut ready = [true, false];
    let fds = [a.as_fd(), c.as_fd()];
    assert_eq!(wait_any_readable(&fds, &mut ready, Some(SOON)).unwrap(), 1);
    assert_eq!(ready, [false, true]);
    drop(b);
    assert_eq!(wait_any_readable(&fds, &mut ready, None).unwrap(), 2);
    assert_eq!(ready, [true, true]);
}

#[test]
fn a_peek_leaves_bytes_and_descriptors() {
    let (a, b) = stream_pair().unwrap();
    send(&a, b"BNDYrest", &[file_with("kept").as_fd()]).unwrap();
    let mut first = [0; 4];
    assert_eq!(peek(&b, &mut first).unwrap(), 4);
    assert_eq!(&first, b"BNDY");

    let (mut bytes, mut received) = ([0; 16], Vec::new());
    assert_eq!(receive(&b, &mut bytes, &mut received).unwrap(), 8);
    assert_eq!(received.len(), 1);
    assert_eq!(contents(received.remove(0)), "kept");
}

#[test]
fn a_full_backlog_is_waited_for_no_longer_than_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("full");
    let listener = listen(&path, 0).unwrap();
    let first = connect_within(&path, SOON).unwrap();
    let error = connect_within(&path, Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop((accept(&listener).unwrap(), first));
    connect_within(&path, SOON).unwrap();
    let error = connect_within(&directory.path().join("none"), SOON).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
