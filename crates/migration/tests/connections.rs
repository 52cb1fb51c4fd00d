//! Two sides over real sockets: certificates, policies, garbage, slow and silent peers.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bindery_migration::connect::{
    ConnectError, FirstRequest, Greeted, Peer, Policy, RateLimit, Sessions, TimeLimits, accept,
    accept_local, dial, dial_local,
};
use bindery_migration::encode::Outlet;
use bindery_migration::format::{
    Accepted, FormatError, Hello, Join, MigrationId, Offer, OfferedBlock, OfferedVmm, Processor,
    Refusal, RefusalKind, Secret,
};
use rcgen::{
    CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};

/// Authority of a test, with a directory for what it issues.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Issues a certificate for names, and returns the policy of who has it and trusts `trusted`.
    fn policy(&self, names: &[&str], is_expired: bool, allowed: &[&str], trusted: &Self) -> Policy {
        let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if is_expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path("cert.pem"), certificate.pem()).unwrap();
        fs::write(self.path("key.pem"), key.serialize_pem()).unwrap();
        let allowed: Vec<_> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let (certificate, key) = (self.path("cert.pem"), self.path("key.pem"));
        Policy::read(&certificate, &key, &trusted.path("ca.pem"), &allowed).unwrap()
    }
}

fn limits() -> TimeLimits {
    let ms = Duration::from_millis;
    TimeLimits { greeting: ms(2000), answer: ms(2000), silence: ms(1000) }
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

type Ends = (Result<Accepted, ConnectError>, Result<FirstRequest, ConnectError>);

/// Connects a source to a destination, which accepts what it is offered.
fn meet(source: Option<&Policy>, destination: Option<&Policy>) -> Ends {
    let (listener, port) = listen();
    thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let mut greeted = accept(listener.accept().unwrap().0, destination, &limits())?;
            let request = greeted.first_request()?;
            greeted.accept_offer(&consent())?;
            Ok(request)
        });
        let dialled = dial("localhost", port, source, &limits());
        let offered = dialled.and_then(|mut greeted| greeted.offer(&offer()));
        (offered, accepting.join().unwrap())
    })
}

fn consent() -> Accepted {
    Accepted { secret: Secret::new(vec![1; 32]), streams: 2, has_pages: false }
}

fn offer() -> Offer {
    Offer {
        id: MigrationId([3; 16]),
        guest: "web".into(),
        uuid: [0; 16],
        domain: "all".into(),
        blocks: vec![OfferedBlock { name: "pc.ram".into(), bytes: 1 << 20 }],
        used_bytes: 0,
        vmm: OfferedVmm::default(),
        processor: Processor::default(),
        disks: vec![],
        streams: 2,
        digest_secret: Secret::new(vec![0; 64]),
    }
}

/// Policies of two hosts with one authority: `a` may migrate to `localhost`.
fn hosts() -> (Policy, Policy) {
    let authority = Authority::new();
    let source = authority.policy(&["a"], false, &[], &authority);
    let destination = authority.policy(&["localhost"], false, &["b", "a"], &authority);
    (source, destination)
}

#[test]
fn both_sides_know_each_other() {
    let (source, destination) = hosts();
    let (offered, requested) = meet(Some(&source), Some(&destination));
    assert_eq!(offered.unwrap(), consent());
    let FirstRequest::Offer(offered) = requested.unwrap() else { panic!("it is an offer") };
    assert_eq!(*offered, offer());
}

#[test]
fn another_authority_is_refused_by_either_side() {
    let (one, other) = (Authority::new(), Authority::new());
    // The destination's certificate is of another authority than the source trusts.
    let source = one.policy(&["a"], false, &[], &one);
    let destination = other.policy(&["localhost"], false, &["a"], &one);
    let (offered, requested) = meet(Some(&source), Some(&destination));
    let (offered, requested) = (offered.unwrap_err(), requested.unwrap_err());
    assert!(
        matches!(&offered, ConnectError::PeerCertificate(it) if it.contains("migrate_ca")),
        "{offered}"
    );
    assert!(
        matches!(&requested, ConnectError::OwnCertificate(it) if it.contains("migrate_ca")),
        "{requested}"
    );
    // And the source's.
    let source = other.policy(&["a"], false, &[], &one);
    let destination = one.policy(&["localhost"], false, &["a"], &one);
    let (offered, requested) = meet(Some(&source), Some(&destination));
    let (offered, requested) = (offered.unwrap_err(), requested.unwrap_err());
    assert!(
        matches!(&offered, ConnectError::OwnCertificate(it) if it.contains("migrate_ca")),
        "{offered}"
    );
    assert!(
        matches!(&requested, ConnectError::PeerCertificate(it) if it.contains("migrate_ca")),
        "{requested}"
    );
}

#[test]
fn expired_certificates_are_refused_by_either_side() {
    let authority = Authority::new();
    let good = authority.policy(&["a", "localhost"], false, &["a"], &authority);
    let old = authority.policy(&["a", "localhost"], true, &["a"], &authority);
    let (offered, requested) = meet(Some(&good), Some(&old));
    let (offered, requested) = (offered.unwrap_err(), requested.unwrap_err());
    assert!(
        matches!(&offered, ConnectError::PeerCertificate(it) if it.contains("expired")),
        "{offered}"
    );
    assert!(
        matches!(&requested, ConnectError::OwnCertificate(it) if it.contains("expired")),
        "{requested}"
    );
    let (offered, requested) = meet(Some(&old), Some(&good));
    let (offered, requested) = (offered.unwrap_err(), requested.unwrap_err());
    assert!(
        matches!(&offered, ConnectError::OwnCertificate(it) if it.contains("expired")),
        "{offered}"
    );
    assert!(
        matches!(&requested, ConnectError::PeerCertificate(it) if it.contains("expired")),
        "{requested}"
    );
}

#[test]
fn other_names_are_refused_by_either_side() {
    let authority = Authority::new();
    let source = authority.policy(&["a"], false, &[], &authority);
    let elsewhere = authority.policy(&["elsewhere"], false, &["a"], &authority);
    let (offered, _) = meet(Some(&source), Some(&elsewhere));
    let offered = offered.unwrap_err();
    assert!(
        matches!(&offered, ConnectError::PeerCertificate(it) if it.contains("another name")),
        "{offered}"
    );
    // A good certificate whose name is not in migrate_from; nobody is, if that is empty.
    for allowed in [&["b", "*.a"][..], &[]] {
        let destination = authority.policy(&["localhost"], false, allowed, &authority);
        let (offered, requested) = meet(Some(&source), Some(&destination));
        let (offered, requested) = (offered.unwrap_err(), requested.unwrap_err());
        assert!(matches!(requested, ConnectError::NotAllowed { .. }), "{requested}");
        let is_policy =
            matches!(&offered, ConnectError::Refused(it) if it.kind == RefusalKind::Policy);
        assert!(is_policy, "{offered}");
    }
}

#[test]
fn a_peer_without_certificate_is_refused() {
    let (source, destination) = hosts();
    let (offered, requested) = meet(None, Some(&destination));
    assert!(offered.is_err());
    assert!(matches!(requested, Err(ConnectError::Format(FormatError::Foreign))), "{requested:?}");
    let (offered, requested) = meet(Some(&source), None);
    assert!(matches!(offered, Err(ConnectError::Format(FormatError::Foreign))), "{offered:?}");
    assert!(requested.is_err());
}

#[test]
fn tls_1_2_is_refused() {
    let (_, destination) = hosts();
    let (listener, port) = listen();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider);
    let client = client.with_protocol_versions(&[&rustls::version::TLS12]).unwrap();
    let client =
        client.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let mut session =
        rustls::ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
    thread::scope(|scope| {
        let accepting =
            scope.spawn(|| accept(listener.accept().unwrap().0, Some(&destination), &limits()));
        let mut tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let refused = session.complete_io(&mut tcp).unwrap_err();
        assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
        let error = accepting.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ConnectError::Tls(_)) && error.to_string().contains("1.3"),
            "{error}"
        );
    });
}

/// Lets a destination accept whatever `peer` does, and returns its error and the time that it took.
fn against(
    policy: Option<&Policy>,
    peer: impl FnOnce(TcpStream) + Send,
) -> (ConnectError, Duration) {
    let (listener, port) = listen();
    let start = Instant::now();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut greeted = accept(listener.accept().unwrap().0, policy, &limits())?;
            greeted.first_request()
        });
        peer(TcpStream::connect(("127.0.0.1", port)).unwrap());
        (accepting.join().unwrap().unwrap_err(), start.elapsed())
    })
}

#[test]
fn garbage_is_refused_at_once() {
    let (_, destination) = hosts();
    for policy in [None, Some(&destination)] {
        let (error, time) = against(policy, |mut tcp| {
            // The other side may hang up first.
            _ = tcp.write_all(&[0x47; 4096]);
            _ = tcp.read(&mut [0; 1024]);
        });
        assert!(matches!(error, ConnectError::Format(FormatError::Foreign)), "{error}");
        assert!(time < Duration::from_millis(1500), "{time:?}");
    }
    let (error, _) = against(None, |mut tcp| {
        tcp.write_all(&Hello::default().encode()).unwrap();
        // An offer of 4 GiB.
        _ = tcp.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        _ = tcp.read_to_end(&mut Vec::new());
    });
    assert!(matches!(error, ConnectError::Format(FormatError::Impossible { .. })), "{error}");
}

#[test]
fn another_version_is_refused_with_both() {
    let (error, _) = against(None, |mut tcp| {
        let hello = Hello { least: 7, latest: 9, ..Hello::default() };
        tcp.write_all(&hello.encode()).unwrap();
        _ = tcp.read_to_end(&mut Vec::new());
    });
    assert!(error.to_string().contains("7 to 9"), "{error}");
}

#[test]
fn a_peer_that_hangs_or_hangs_up_is_given_up() {
    let (_, destination) = hosts();
    for policy in [None, Some(&destination)] {
        let (error, time) = against(policy, |mut tcp| {
            _ = tcp.read_to_end(&mut Vec::new());
        });
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
        assert!(time < Duration::from_millis(3500), "{time:?}");
        let (error, _) = against(policy, drop);
        assert!(matches!(error, ConnectError::HungUp(_) | ConnectError::Io { .. }), "{error}");
    }
}

#[test]
fn a_slow_loris_has_no_more_time_than_others() {
    let (_, destination) = hosts();
    for policy in [None, Some(&destination)] {
        let (error, time) = against(policy, |mut tcp| {
            // The start of a greeting, a byte at a time, more often than silence is allowed.
            let start = match policy {
                None => Hello::default().encode().to_vec(),
                Some(_) => [&[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[0; 500]].concat(),
            };
            for byte in start.iter().chain(&[0; 500]) {
                if tcp.write_all(&[*byte]).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
        let limit = Duration::from_millis(3000);
        assert!(time > Duration::from_millis(1900) && time < limit * 20, "{time:?}");
    }
}

#[test]
fn other_machines_need_certificates() {
    // 192.0.2.0/24 is documentation's, and is not reached for.
    let error = dial("192.0.2.1", 1, None, &limits()).unwrap_err();
    assert!(matches!(error, ConnectError::NotLocal(_)), "{error}");
}

#[test]
fn nobody_listens() {
    let (listener, port) = listen();
    drop(listener);
    let error = dial("localhost", port, None, &limits()).unwrap_err();
    assert!(error.to_string().contains("migrate_listen"), "{error}");
}

#[test]
fn refusals_come_with_reasons() {
    let (one, other) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut greeted = accept_local(other, &limits()).unwrap();
            assert!(matches!(greeted.first_request().unwrap(), FirstRequest::Offer(_)));
            let reason = "web is there already\x1b[2J".into();
            greeted.refuse(&Refusal { kind: RefusalKind::NameTaken, reason }).unwrap();
        });
        let error = dial_local(one, &limits()).unwrap().offer(&offer()).unwrap_err();
        assert_eq!(error.to_string(), "the peer refused: web is there already[2J");
    });
}

/// Both ends of an established connection.
fn pair(policies: Option<&(Policy, Policy)>) -> (Greeted, Greeted) {
    let (listener, port) = listen();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            accept(listener.accept().unwrap().0, policies.map(|it| &it.1), &limits()).unwrap()
        });
        let source = dial("localhost", port, policies.map(|it| &it.0), &limits()).unwrap();
        (source, accepting.join().unwrap())
    })
}

#[test]
fn further_streams_join_by_the_secret() {
    let policies = hosts();
    let (sessions, id) = (Sessions::default(), MigrationId([3; 16]));
    let secret = sessions.open(id, &Peer::Named("a".into()), 2).unwrap();
    let (mut source, mut destination) = pair(Some(&policies));
    thread::scope(|scope| {
        scope.spawn(|| source.join(&Join { secret, stream: 1 }).unwrap());
        let FirstRequest::Join(join) = destination.first_request().unwrap() else {
            panic!("it is a join")
        };
        assert_eq!(sessions.join(&join, &destination.peer), Some(id));
        destination.accept_join().unwrap();
    });
}

#[test]
fn both_directions_flow_at_once() {
    let policies = hosts();
    for policies in [None, Some(&policies)] {
        let (source, destination) = pair(policies);
        let bytes: Vec<u8> = (0..24_u32 << 20).map(|at| ((at * 7) >> 3) as u8).collect();
        let (mut ends, bytes) = ([source, destination], &bytes);
        let start = Instant::now();
        thread::scope(|scope| {
            for end in &mut ends {
                let Greeted { reader, writer, .. } = end;
                scope.spawn(move || {
                    for chunk in bytes.chunks(1_000_001) {
                        let (one, other) = chunk.split_at(chunk.len() / 3);
                        writer.send(&[one, &[], other]).unwrap();
                    }
                });
                scope.spawn(move || {
                    let mut received = vec![0; bytes.len()];
                    reader.read_exact(&mut received).unwrap();
                    assert!(received == *bytes);
                });
            }
        });
        let name = if policies.is_some() { "TLS" } else { "plain" };
        println!("{name}: 24 MiB each way at once in {:?}", start.elapsed());
    }
}

#[test]
fn a_limit_of_the_rate_holds() {
    let (source, mut destination) = pair(None);
    let limit = Arc::new(RateLimit::new(Some(20_000_000)));
    let mut writer = source.writer.clone().limited(limit);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || writer.send(&[&vec![1; 6_000_000]]).unwrap());
        destination.reader.read_exact(&mut vec![0; 6_000_000]).unwrap();
    });
    let time = start.elapsed();
    assert!(time > Duration::from_millis(250), "{time:?} for what takes 300 ms");
}

#[test]
fn an_established_peer_that_falls_silent_is_given_up() {
    let policies = hosts();
    for policies in [None, Some(&policies)] {
        let (_source, mut destination) = pair(policies);
        destination.reader.set_silence(Duration::from_millis(200)).unwrap();
        let start = Instant::now();
        let error = destination.reader.read(&mut [0; 10]).unwrap_err();
        assert!(
            matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock),
            "{error}"
        );
        assert!(start.elapsed() < Duration::from_millis(1500));
    }
}
