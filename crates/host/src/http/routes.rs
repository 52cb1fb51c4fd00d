//! From a request to its answer.

use std::time::Instant;

use hyper::header::{AUTHORIZATION, HOST};
use hyper::{HeaderMap, Method, StatusCode, Uri};

use super::Viewer;
use super::answer::{Answer, Refusal, json, page, text};
use super::dashboard;
use super::jobs;
use super::map::{CELLS, CELLS_MAX};
use super::metrics;
use super::peer::Ends;
use super::site::Site;

/// The description of the API.
const OPENAPI: &str = include_str!("openapi.json");

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Dashboard,
    Health,
    Metrics,
    Status,
    Guests,
    Guest(String),
    Map(String),
    History,
    Checkpoints,
    Jobs,
    OpenApi,
}

impl Route {
    /// What a path leads to.
    fn of(path: &str) -> Option<Self> {
        let api = match path {
            "/" => return Some(Self::Dashboard),
            "/healthz" => return Some(Self::Health),
            "/metrics" => return Some(Self::Metrics),
            path => path.strip_prefix("/api/v1/")?,
        };
        match api.split('/').collect::<Vec<_>>()[..] {
            ["status"] => Some(Self::Status),
            ["history"] => Some(Self::History),
            ["openapi.json"] => Some(Self::OpenApi),
            ["checkpoints"] => Some(Self::Checkpoints),
            ["jobs"] => Some(Self::Jobs),
            ["guests"] => Some(Self::Guests),
            ["guests", guest] => Some(Self::Guest(decode(guest)?)),
            ["guests", guest, "map"] => Some(Self::Map(decode(guest)?)),
            _ => None,
        }
    }

    /// What anybody may see: that there is a daemon, and whether it is well. The page itself holds
    /// nothing of this machine, and a browser that opens it has no way yet to show a token.
    const fn is_public(&self) -> bool {
        matches!(self, Self::Dashboard | Self::Health)
    }
}

/// The answer to a request for `uri`. Never waits.
pub(super) fn answer(
    site: &Site,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    ends: Option<Ends>,
) -> Answer {
    let answer = look(site, (method, uri), headers, ends);
    let answer = answer.unwrap_or_else(|refusal| refusal.answer());
    site.count(answer.status().as_u16());
    answer
}

fn look(
    site: &Site,
    (method, uri): (&Method, &Uri),
    headers: &HeaderMap,
    ends: Option<Ends>,
) -> Result<Answer, Refusal> {
    check_host(site, headers)?;
    if method != Method::GET && method != Method::HEAD {
        let message = "only GET: settings are changed with `bindery set`, over the socket";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let route = Route::of(uri.path());
    let shown = headers.get(AUTHORIZATION).map(hyper::header::HeaderValue::as_bytes);
    // Who may not look learns nothing of what there is.
    if !route.as_ref().is_some_and(Route::is_public) && !site.access.admits(shown) {
        let message = "this needs the daemon's token: `Authorization: Bearer …`, or the dashboard \
                       opened as /#token=…";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
    }
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "no such page: see /api/v1/openapi.json");
    let viewer = || match site.access.has_token() {
        true => Viewer::Admitted,
        false => ends.and_then(Ends::user).map_or(Viewer::Unknown, Viewer::User),
    };
    show(site, &route.ok_or_else(missing)?, uri.query().unwrap_or_default(), viewer)
}

/// Requests for others are not for us: see [`super::access`].
fn check_host(site: &Site, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(HOST).into_iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        _ => return Err(Refusal::new(StatusCode::BAD_REQUEST, "a request names its host, once")),
    };
    if site.access.knows_host(host) {
        return Ok(());
    }
    let message = "this server answers to localhost and to addresses, not to other names";
    Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, message))
}

fn show(
    site: &Site,
    route: &Route,
    query: &str,
    viewer: impl Fn() -> Viewer,
) -> Result<Answer, Refusal> {
    let now = Instant::now();
    let ok = StatusCode::OK;
    Ok(match route {
        Route::Dashboard => page(dashboard::PAGE),
        Route::Health => {
            let health = site.health(now);
            json(if health.is_ok() { ok } else { StatusCode::SERVICE_UNAVAILABLE }, &health)
        }
        Route::Metrics => {
            let (status, guests) = (site.source.status(), site.source.guests());
            let (pulse, kept) = (site.source.pulse(), site.source.kept());
            let body = metrics::encode((&status, &guests), &kept, pulse, &site.requests());
            text(ok, metrics::MEDIA_TYPE, body)
        }
        Route::Status => json(ok, &site.source.status()),
        Route::Guests => json(ok, &site.source.guests()),
        Route::Guest(name) => {
            let guests = site.source.guests();
            let guest = guests.iter().find(|guest| guest.name == *name);
            json(ok, guest.ok_or_else(|| no_guest(name))?)
        }
        Route::Map(name) => {
            let cells = number(query, "cells", u64::from(CELLS), 1..=u64::from(CELLS_MAX))?;
            json(ok, &site.map(name, cells as u32, now).ok_or_else(|| no_guest(name))?)
        }
        Route::History => json(ok, &site.history(number(query, "since", 0, 0..=u64::MAX)?)),
        Route::Checkpoints => {
            let latest = number(query, "latest", u64::MAX, 1..=u64::MAX)?;
            let latest = usize::try_from(latest).unwrap_or(usize::MAX);
            json(ok, &site.source.checkpoints(viewer(), latest))
        }
        Route::Jobs => json(ok, &jobs::in_progress(site.source.jobs(viewer()))),
        Route::OpenApi => text(ok, "application/json", OPENAPI),
    })
}

fn no_guest(name: &str) -> Refusal {
    let message = format!("no guest is called {name}: see /api/v1/guests");
    Refusal::new(StatusCode::NOT_FOUND, message)
}

/// The number that a query gives for `name`, or `default` if it gives none.
fn number(
    query: &str,
    name: &str,
    default: u64,
    bounds: std::ops::RangeInclusive<u64>,
) -> Result<u64, Refusal> {
    let fields = query.split('&').filter_map(|field| field.split_once('='));
    let Some((_, value)) = fields.into_iter().find(|(field, _)| *field == name) else {
        return Ok(default);
    };
    let number = value.parse().ok().filter(|number| bounds.contains(number));
    number.ok_or_else(|| {
        let (least, most) = bounds.into_inner();
        let message = format!("{name} is a number from {least} to {most}");
        Refusal::new(StatusCode::BAD_REQUEST, message)
    })
}

/// A part of a path as it was before it was encoded (RFC 3986, section 2.1).
fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_where_they_say() {
        let route = |path: &str| Route::of(path);
        assert_eq!(route("/"), Some(Route::Dashboard));
        assert_eq!(route("/api/v1/guests/a%3Ab"), Some(Route::Guest("a:b".into())));
        assert_eq!(route("/api/v1/guests/a:b@c/map"), Some(Route::Map("a:b@c".into())));
        for nowhere in [
            "",
            "//",
            "/metrics/",
            "/api/v1",
            "/api/v1/",
            "/api/v2/status",
            "/api/v1/guests/a/b",
            "/api/v1/guests/%",
            "/api/v1/guests/%4",
            "/api/v1/guests/%zz",
            "/api/v1/guests/%ff/map",
            "/api/v1/guests/a/map/",
            "/../etc/passwd",
            "*",
        ] {
            assert_eq!(route(nowhere), None, "{nowhere}");
        }
    }

    /// A number for each route: whoever adds one is led here, and from here to the description.
    const fn number_of(route: &Route) -> usize {
        match route {
            Route::Dashboard => 0,
            Route::Health => 1,
            Route::Metrics => 2,
            Route::Status => 3,
            Route::Guests => 4,
            Route::Guest(_) => 5,
            Route::Map(_) => 6,
            Route::History => 7,
            Route::OpenApi => 8,
            Route::Checkpoints => 9,
            Route::Jobs => 10,
        }
    }

    #[test]
    fn every_route_is_described_and_every_description_is_a_route() {
        let description: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = description["paths"].as_object().unwrap();
        let mut described: Vec<usize> = paths
            .keys()
            .map(|path| number_of(&Route::of(path).unwrap_or_else(|| panic!("{path}"))))
            .collect();
        described.sort_unstable();
        assert_eq!(described, (0..11).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_have_bounds() {
        let cells = |query| number(query, "cells", 7, 1..=100).ok();
        assert_eq!(
            [cells(""), cells("a=1&cells=100"), cells("cell=3")],
            [Some(7), Some(100), Some(7)]
        );
        for wrong in ["cells=", "cells=0", "cells=101", "cells=-1", "cells=1e1", "cells=1&cells=x0"]
        {
            assert!(cells(wrong).is_none_or(|cells| cells == 1), "{wrong}");
        }
    }
}
