//! What is wrong is said, with what to do about it, and at once where waiting does not help.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_pool::archive::{self, Archive, OpenError, PutError, Secret};
use hyper::Method;

use super::objects::{Object, new_pool};
use super::proxy::{Fault, Rule};
use super::server::{BUCKET, Bench, SECRET, options};

/// Opens, and gives what went wrong; quickly, and without secrets.
fn fault(
    bench: &Bench,
    bucket: &str,
    change: impl FnOnce(&mut archive::ArchiveOptions),
) -> archive::Fault {
    let mut options = bench.options("one");
    change(&mut options);
    let start = Instant::now();
    let error = Archive::open(&format!("s3://{bucket}/p"), options.clone()).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10));
    println!("{error}");
    assert!(!format!("{error} {error:?} {options:?}").contains(SECRET));
    let OpenError::Fault(fault) = error else { panic!("{error}") };
    fault
}

#[test]
fn every_refusal_says_what_to_do() {
    let bench = Bench::s3s();
    use archive::Fault as Said;
    let said = fault(&bench, BUCKET, |options| {
        let credentials = options.credentials.as_mut().unwrap();
        credentials.secret_access_key = Secret("wrong".into());
    });
    assert!(matches!(said, Said::Credentials { .. }), "{said}");
    let said = fault(&bench, BUCKET, |options| {
        options.credentials.as_mut().unwrap().access_key_id = "nobody".into();
    });
    assert!(matches!(said, Said::Credentials { .. } | Said::Denied { .. }), "{said}");
    let refuse = |status, code| {
        bench.proxy.follow([Rule::always(Method::PUT, "", Fault::Refuse(status, code))]);
        let said = fault(&bench, BUCKET, |_| {});
        assert_eq!(bench.proxy.requests(&Method::PUT), 1, "it is not repeated: {said}");
        said
    };
    assert!(matches!(refuse(404, "NoSuchBucket"), Said::NoBucket { .. }));
    assert!(matches!(refuse(403, "AccessDenied"), Said::Denied { .. }));
    assert!(matches!(refuse(403, "RequestTimeTooSkewed"), Said::Clock { .. }));
    assert!(matches!(refuse(400, "ExpiredToken"), Said::Credentials { .. }));
    assert!(matches!(refuse(301, "PermanentRedirect"), Said::Elsewhere { .. }));
    assert!(matches!(refuse(400, "AuthorizationHeaderMalformed"), Said::Elsewhere { .. }));
    assert!(matches!(refuse(507, "XMinioStorageFull"), Said::Full { .. }));
    assert!(matches!(refuse(405, "MethodNotAllowed"), Said::Refused { .. }));
    assert!(matches!(refuse(501, "NotImplemented"), Said::Refused { .. }));
}

/// `s3s-fs` makes buckets as they are named; others do not.
pub(crate) fn missing_buckets_are_named(bench: &Bench) {
    let said = fault(bench, "no-such-bucket", |_| {});
    assert!(matches!(said, archive::Fault::NoBucket { .. }), "{said}");
}

#[test]
fn an_endpoint_where_nobody_is_says_so() {
    let bench = Bench::s3s();
    // A client's own port: as long as it has it, nobody listens there.
    let client = std::net::TcpStream::connect(bench.proxy.address).unwrap();
    let unused = client.local_addr().unwrap();
    let said = fault(&bench, BUCKET, |options| {
        options.endpoint = Some(format!("http://{unused}"));
        // Long enough for two attempts on a busy machine.
        options.patience.deadline = Duration::from_secs(3);
    });
    drop(client);
    let archive::Fault::Deadline { last, attempts, .. } = said else { panic!("{said}") };
    assert!(matches!(*last, archive::Fault::Unreachable { .. }) && attempts > 1, "{last}");
}

/// A store that forgets conditions would let hosts overwrite each other: it is not used.
#[test]
fn stores_that_ignore_conditions_are_refused() {
    let bench = Bench::s3s();
    let marker = bench.files.as_ref().unwrap().join("some/prefix/bindery-archive");
    let forget = Arc::new(move || drop(std::fs::remove_file(&marker)));
    for _ in 0..2 {
        let forgetful = Fault::Meanwhile(forget.clone());
        bench.proxy.follow([Rule::always(Method::PUT, "bindery-archive", forgetful)]);
        let error = bench.open(bench.options("one")).unwrap_err();
        assert!(matches!(error, OpenError::Unconditional { .. }), "{error}");
        bench.proxy.follow([]);
        bench.archive("one");
    }
}

#[test]
fn markers_of_others_are_respected() {
    let bench = Bench::s3s();
    bench.archive("one");
    let marker = bench.files.as_ref().unwrap().join("some/prefix/bindery-archive");
    for found in ["bindery archive, format 2\n", "", "bindery archive, format 1\n and more"] {
        std::fs::write(&marker, found).unwrap();
        let error = bench.open(bench.options("one")).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), found);
    }
}

#[test]
fn urls_that_name_no_archive_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for url in [
        "",
        "bucket/prefix",
        "s3://",
        "s3:///prefix",
        "http://bucket/prefix",
        "s3://key:do-not-show-this@bucket/prefix",
        "s3://bucket/prefix?region=here",
        "file://host/path",
        "file:///no/such/directory",
        &format!("file://{}", file.display()),
    ] {
        let error = Archive::open(url, options("", "one")).unwrap_err();
        assert!(matches!(error, OpenError::Location(_)), "{error}");
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
    }
    let url = format!("file://{}", directory.path().display());
    for (part_bytes, parts_at_once) in [(0, 1), (4095, 1), (8 << 30, 1), (4096, 0)] {
        let options = archive::ArchiveOptions { part_bytes, parts_at_once, ..options("", "one") };
        assert!(matches!(Archive::open(&url, options), Err(OpenError::Parts { .. })));
    }
}

/// An object whose medium gives other bytes the second time is not archived as if it were whole.
#[test]
fn objects_that_change_or_cannot_be_read_are_refused() {
    struct Failing(Object, std::cell::Cell<u32>, bool);
    impl archive::Source for Failing {
        fn id(&self) -> bindery_pool::ObjectId {
            self.0.id
        }
        fn length_bytes(&self) -> u64 {
            archive::Source::length_bytes(&self.0)
        }
        fn read(
            &self,
            offset_bytes: u64,
            into: &mut bindery_sys::direct::Buffer,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            archive::Source::read(&self.0, offset_bytes, into)?;
            self.1.set(self.1.get() + 1);
            match (self.1.get(), self.2) {
                (2, false) => into[5000] ^= 1,
                (2, true) => return Err("the device is gone".into()),
                _ => {}
            }
            Ok(())
        }
    }
    let bench = Bench::s3s();
    let (archive, pool) = (bench.archive("one"), new_pool());
    let failing = |fails| Failing(Object::new(1, 16_000, 1), std::cell::Cell::new(0), fails);
    let error = archive.put(pool, &failing(false)).unwrap_err();
    assert!(matches!(error, PutError::Changed { offset_bytes: 4096, .. }), "{error}");
    let error = archive.put(pool, &failing(true)).unwrap_err();
    assert!(matches!(error, PutError::Source { offset_bytes: 0, .. }), "{error}");
    archive.put(pool, &Object::new(1, 16_000, 1)).unwrap();
}
