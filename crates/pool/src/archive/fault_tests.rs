//! Every kind of error of a store is told for what it is.

use object_store::Error;

use super::*;

fn subject() -> Subject {
    Subject { store: "s3://bucket".into(), key: "key".into() }
}

/// As the store wraps what its HTTP client says.
fn wrapped(error: impl StdError + Send + Sync + 'static) -> Error {
    let http = HttpError::new(HttpErrorKind::Unknown, error);
    Error::Generic { store: "S3", source: Box::new(io::Error::other(http)) }
}

fn refused(status: u16, code: &str) -> Fault {
    let (code, message) = (code.to_owned(), "why".to_owned());
    subject().fault(&wrapped(Refusal { status, code, message, region: Some("there".into()) }))
}

#[test]
fn codes_of_s3_decide() {
    assert!(matches!(refused(404, "NoSuchBucket"), Fault::NoBucket { .. }));
    assert!(matches!(refused(404, "NoSuchKey"), Fault::Absent { .. }));
    assert!(matches!(refused(404, ""), Fault::Absent { .. }));
    assert!(matches!(refused(403, ""), Fault::Denied { .. }));
    assert!(matches!(refused(401, ""), Fault::Credentials { .. }));
    assert!(matches!(refused(403, "SignatureDoesNotMatch"), Fault::Credentials { .. }));
    assert!(matches!(refused(403, "RequestTimeTooSkewed"), Fault::Clock { .. }));
    assert!(matches!(refused(400, "RequestTimeout"), Fault::Interrupted { .. }));
    assert!(matches!(refused(400, "InvalidArgument"), Fault::Refused { .. }));
    let elsewhere = refused(301, "PermanentRedirect");
    assert!(elsewhere.to_string().contains("in region there"), "{elsewhere}");
}

#[test]
fn what_may_pass_is_repeated_and_nothing_else() {
    for (status, code) in [
        (503, "SlowDown"),
        (500, "InternalError"),
        (429, ""),
        (408, ""),
        (502, ""),
        (400, "SlowDown"),
    ] {
        assert!(refused(status, code).is_transient(), "{status} {code}");
    }
    for status in [400, 401, 403, 404, 405, 301, 416, 501, 507] {
        assert!(!refused(status, "").is_transient(), "{status}");
    }
    for kind in [HttpErrorKind::Connect, HttpErrorKind::Timeout, HttpErrorKind::Interrupted] {
        let error = HttpError::new(kind, io::Error::from(io::ErrorKind::BrokenPipe));
        let error = Error::Generic { store: "S3", source: Box::new(error) };
        assert!(subject().fault(&error).is_transient(), "{kind:?}");
    }
}

#[test]
fn directories_have_errors_of_their_own() {
    let local = |kind: io::ErrorKind| {
        let source = Box::new(io::Error::from(kind));
        subject().fault(&Error::Generic { store: "LocalFileSystem", source })
    };
    assert!(matches!(local(io::ErrorKind::StorageFull), Fault::Full { .. }));
    assert!(matches!(local(io::ErrorKind::PermissionDenied), Fault::Denied { .. }));
    assert!(matches!(local(io::ErrorKind::ReadOnlyFilesystem), Fault::Denied { .. }));
    assert!(matches!(local(io::ErrorKind::InvalidData), Fault::Refused { .. }));
}
