//! What goes back to a client.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

/// An answer with all of its body.
pub(super) type Answer = Response<Full<Bytes>>;

/// What a browser may do with the dashboard: run its own script, ask this server, and nothing else. No
/// other page may show it in a frame.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; \
     style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// An answer of this type and text.
pub(super) fn text(status: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, media),
        // What is shown is true now, and may be for few eyes.
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A page for a browser.
pub(super) fn page(body: &'static str) -> Answer {
    let mut answer = text(StatusCode::OK, "text/html; charset=utf-8", body);
    let policy = HeaderValue::from_static(PAGE_POLICY);
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    answer
}

/// `value` as JSON.
///
/// # Panics
/// Never for what is answered here: no maps with keys that JSON does not allow.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(value).expect("what is answered always has a JSON form");
    text(status, "application/json", body)
}

/// Why a request is not served.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    /// A refusal that says what happened and what to do.
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// What the client is told.
    pub(super) fn answer(&self) -> Answer {
        let error = json!({ "status": self.status.as_u16(), "message": self.message });
        let mut answer = json(self.status, &json!({ "error": error }));
        let extra = match self.status {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
            StatusCode::METHOD_NOT_ALLOWED => Some((header::ALLOW, "GET, HEAD")),
            _ => None,
        };
        if let Some((name, value)) = extra {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}
