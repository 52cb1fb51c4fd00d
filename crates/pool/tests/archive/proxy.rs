//! A network that misbehaves as it is told, between an archive and its store.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, IF_NONE_MATCH};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::background::Background;

type Answer = Response<BoxBody<Bytes, std::io::Error>>;

/// What happens to a request.
#[derive(Clone)]
pub(crate) enum Fault {
    /// It never arrives; the connection breaks.
    LoseRequest,
    /// It is done; the connection breaks before the answer.
    LoseAnswer,
    /// It is refused, with an error as S3 writes them.
    Refuse(u16, &'static str),
    /// It never arrives, and is acknowledged all the same, with this body.
    Acknowledge(&'static str),
    /// Something else happens when it is done, before the answer.
    Afterwards(Arc<dyn Fn() + Send + Sync>),
    /// The answer's body ends after so many bytes.
    Truncate(usize),
    /// A bit of the answer's body turns, so far from its end.
    FlipBit(usize),
    /// The answer comes late.
    Delay(Duration),
    /// Something else happens first; then the request goes on.
    Meanwhile(Arc<dyn Fn() + Send + Sync>),
}

/// Which requests a fault is for.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) method: Method,
    /// Part of the path and the query.
    pub(crate) target: String,
    /// How many such requests pass before.
    pub(crate) skip: usize,
    /// How many it hits.
    pub(crate) times: usize,
    pub(crate) fault: Fault,
}

impl Rule {
    /// Once, for the request after `skip` others of a method.
    pub(crate) fn nth(method: Method, skip: usize, fault: Fault) -> Self {
        Self { method, target: String::new(), skip, times: 1, fault }
    }

    /// For ever.
    pub(crate) fn always(method: Method, target: &str, fault: Fault) -> Self {
        Self { method, target: target.into(), skip: 0, times: usize::MAX, fault }
    }
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    fired: usize,
    log: Vec<String>,
    /// How often the store was asked to create each key.
    creations: HashMap<String, usize>,
    /// Listings are frozen; the answer that they are frozen to, once there is one.
    frozen: Option<Option<Bytes>>,
}

/// A proxy that is told what to do wrong. Every creation passes alone: of the stores behind it, some
/// look whether a key is there and write it later, which S3 does not.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _background: Background,
}

impl Proxy {
    pub(crate) fn before(upstream: SocketAddr) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let creations = Arc::new(tokio::sync::Mutex::new(()));
        let (background, address) = Background::serve(move |stream| {
            let (state, creations) = (Arc::clone(&shared), Arc::clone(&creations));
            let service = hyper::service::service_fn(move |request| {
                pass(request, upstream, Arc::clone(&state), Arc::clone(&creations))
            });
            async move {
                let connection = hyper::server::conn::http1::Builder::new();
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            }
        });
        Self { address, state, _background: background }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all rules and the log, then follows these.
    pub(crate) fn follow(&self, rules: impl IntoIterator<Item = Rule>) {
        let mut state = self.state();
        (state.rules, state.fired) = (rules.into_iter().collect(), 0);
        state.log.clear();
        state.creations.clear();
    }

    /// How often a rule took effect since [`follow`](Self::follow).
    pub(crate) fn fired(&self) -> usize {
        self.state().fired
    }

    /// How many requests of a method passed or failed since then.
    pub(crate) fn requests(&self, method: &Method) -> usize {
        let start = format!("{method} ");
        self.state().log.iter().filter(|line| line.starts_with(&start)).count()
    }

    /// How many keys the store was asked to create more than once since then.
    pub(crate) fn created_again(&self) -> usize {
        self.state().creations.values().filter(|times| **times > 1).count()
    }

    /// From the next listing on, every listing is that one.
    pub(crate) fn freeze_listings(&self, freeze: bool) {
        self.state().frozen = freeze.then_some(None);
    }
}

/// Takes the rule that a request meets, if any.
fn rule_for(state: &mut State, method: &Method, target: &str) -> Option<Fault> {
    state.log.push(format!("{method} {target}"));
    for rule in &mut state.rules {
        if rule.method != *method || !target.contains(&rule.target) {
            continue;
        }
        if rule.skip > 0 {
            rule.skip -= 1;
        } else if rule.times > 0 {
            rule.times -= 1;
            state.fired += 1;
            return Some(rule.fault.clone());
        }
    }
    None
}

fn pass(
    request: Request<Incoming>,
    upstream: SocketAddr,
    state: Arc<Mutex<State>>,
    creations: Arc<tokio::sync::Mutex<()>>,
) -> Pin<Box<dyn Future<Output = Result<Answer, std::io::Error>> + Send>> {
    Box::pin(async move {
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        let target = request.uri().to_string();
        let fault = rule_for(&mut lock(), request.method(), &target);
        let (parts, body) = request.into_parts();
        // Read to its end even where it is lost, so that the client gets as far as waiting.
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        match &fault {
            Some(Fault::LoseRequest) => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Some(Fault::Refuse(status, code)) => return Ok(refusal(*status, code)),
            Some(Fault::Acknowledge(body)) => return Ok(acknowledgement(body)),
            Some(Fault::Meanwhile(act)) => {
                let act = Arc::clone(act);
                tokio::task::spawn_blocking(move || act()).await.map_err(std::io::Error::other)?;
            }
            _ => {}
        }
        if target.contains("list-type=2")
            && let Some(Some(listing)) = lock().frozen.clone()
        {
            return Ok(Response::new(whole(listing)));
        }
        let alone = if parts.headers.contains_key(IF_NONE_MATCH) {
            *lock().creations.entry(target.clone()).or_default() += 1;
            Some(creations.lock().await)
        } else {
            None
        };
        let answer = forward(upstream, Request::from_parts(parts, Full::new(body))).await?;
        drop(alone);
        if let Some(Fault::Afterwards(act)) = &fault {
            act();
        }
        if target.contains("list-type=2") {
            let (_, content) = &answer;
            if let Some(frozen) = &mut lock().frozen {
                frozen.get_or_insert_with(|| content.clone());
            }
        }
        damage(answer, fault).await
    })
}

async fn forward(
    upstream: SocketAddr,
    request: Request<Full<Bytes>>,
) -> std::io::Result<(hyper::http::response::Parts, Bytes)> {
    let stream = TcpStream::connect(upstream).await?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(std::io::Error::other)?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(std::io::Error::other)?;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    drop(sender);
    connection.abort();
    Ok((parts, body))
}

async fn damage(
    (mut parts, body): (hyper::http::response::Parts, Bytes),
    fault: Option<Fault>,
) -> std::io::Result<Answer> {
    parts.headers.remove(hyper::header::TRANSFER_ENCODING);
    if !body.is_empty() {
        parts.headers.insert(CONTENT_LENGTH, body.len().into());
    }
    let content = match fault {
        Some(Fault::LoseAnswer) => return Err(std::io::ErrorKind::ConnectionReset.into()),
        Some(Fault::Truncate(bytes)) if parts.status.is_success() => {
            let some = body.slice(..bytes.min(body.len()));
            let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            let frames = stream::iter([Ok(Frame::data(some)), Err(broken)]);
            BoxBody::new(StreamBody::new(frames))
        }
        Some(Fault::FlipBit(from_end)) if parts.status.is_success() && body.len() > from_end => {
            let mut bytes = body.to_vec();
            let at = bytes.len() - 1 - from_end;
            bytes[at] ^= 1;
            whole(bytes.into())
        }
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            whole(body)
        }
        _ => whole(body),
    };
    Ok(Response::from_parts(parts, content))
}

fn whole(body: Bytes) -> BoxBody<Bytes, std::io::Error> {
    BoxBody::new(Full::new(body).map_err(|never: Infallible| match never {}))
}

fn acknowledgement(body: &'static str) -> Answer {
    let etag = "\"d41d8cd98f00b204e9800998ecf8427e\"";
    let answer = Response::builder().status(200).header("ETag", etag);
    answer.body(whole(body.into())).expect("a status is a status")
}

fn refusal(status: u16, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>");
    Response::builder().status(status).body(whole(body.into())).expect("a status is a status")
}
