//! A server without a daemon: whatever comes, it answers or ends the connection.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::alone::{runtime, serve, site, talk};
use super::serve::{CROWDED_PATIENCE, HEADER_PATIENCE, REQUEST_BYTES_MAX};
use super::site::Site;

/// Sends `sent` over a connection of its own, ends it, and returns all that came back.
fn converse(site: &Arc<Site>, sent: &[u8], is_ended: bool) -> String {
    String::from_utf8_lossy(&talk(site, sent, is_ended)).into_owned()
}

fn status_of(answer: &str) -> Option<u16> {
    answer.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()
}

fn ask(site: &Arc<Site>, request: &str) -> (u16, String) {
    let answer = converse(site, request.as_bytes(), true);
    let status = status_of(&answer).unwrap_or_else(|| panic!("{request}: {answer}"));
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status, body.unwrap_or_default())
}

fn get(site: &Arc<Site>, path: &str, headers: &str) -> (u16, String) {
    ask(site, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"))
}

#[test]
fn only_who_asks_for_us_is_answered() {
    let site = site(None);
    let host = |headers: &str| ask(&site, &format!("GET /healthz HTTP/1.1\r\n{headers}\r\n")).0;
    assert_eq!(host("Host: 127.0.0.1:9480\r\n"), 200);
    assert_eq!(host("Host: evil.example:9480\r\n"), 421);
    assert_eq!(host(""), 400);
    assert_eq!(host("Host: localhost\r\nHost: evil.example\r\n"), 400);
    assert_eq!(ask(&site, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n").0, 405);
    assert_eq!(ask(&site, "DELETE /api/v1/guests/a HTTP/1.1\r\nHost: localhost\r\n\r\n").0, 405);
    assert_eq!(get(&site, "/api/v1/guests/none/map", "").0, 404);
    assert_eq!(get(&site, "/api/v1/history?since=x", "").0, 400);
}

#[test]
fn with_a_token_all_but_the_empty_page_and_health_need_it() {
    let site = site(Some("0123456789abcdef"));
    let with = "Authorization: Bearer 0123456789abcdef\r\n";
    for path in [
        "/metrics",
        "/api/v1/status",
        "/api/v1/guests",
        "/api/v1/history",
        "/api/v1/checkpoints",
        "/api/v1/jobs",
        "/api/v1/openapi.json",
    ] {
        assert_eq!(get(&site, path, "").0, 401, "{path}");
        assert_eq!(get(&site, path, "Authorization: Bearer 0123456789abcdeF\r\n").0, 401, "{path}");
        assert_eq!(get(&site, path, with).0, 200, "{path}");
    }
    for unknown in ["/api/v1/none", "/x", "/api/v1/guests/a", "/api/v1/guests/a/map"] {
        assert_eq!(get(&site, unknown, "").0, 401, "who may not look does not learn what is there");
        assert_eq!(get(&site, unknown, with).0, 404);
    }
    assert_eq!((get(&site, "/", "").0, get(&site, "/healthz", "").0), (200, 200));
}

#[test]
fn metrics_of_an_empty_daemon_are_whole_and_escaped() {
    let (status, body) = get(&site(None), "/metrics", "");
    assert_eq!(status, 200);
    assert!(body.contains(r#"bindery_build_info{version="1.2.3 \"\\\n"} 1"#), "{body}");
    assert!(body.contains("\nbindery_scan_time_seconds 0.0025\n"), "{body}");
    assert!(body.contains("\nbindery_state{state=\"running\"} 1\n"), "{body}");
    assert!(!body.contains("bindery_guest_ram_bytes"));
}

#[test]
fn who_is_slow_or_long_is_not_waited_for() {
    let site = site(None);
    let start = std::time::Instant::now();
    // Never ended: only time ends these.
    let slow = converse(&site, b"GET /healthz HTTP/1.1\r\nHost: local", false);
    assert!(slow.is_empty() || status_of(&slow).is_some_and(|status| status >= 400), "{slow}");
    let idle = converse(&site, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", false);
    assert_eq!(status_of(&idle), Some(200));
    let mut long = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    long.resize(4 * REQUEST_BYTES_MAX, b'x');
    let long = converse(&site, &long, false);
    assert_eq!(status_of(&long), Some(431), "{long}");
    let uri = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(15_000));
    assert!([404, 414].contains(&ask(&site, &uri).0));
    let many = "X: y\r\n".repeat(100);
    assert_eq!(get(&site, "/", &many).0, 431);
    assert!(start.elapsed() < HEADER_PATIENCE, "time was the runtime's");
}

#[test]
fn a_connection_ends_after_a_while_however_busy() {
    let site = site(None);
    let runtime = runtime();
    runtime.block_on(async {
        let (ours, theirs) = duplex(64 * 1024);
        serve(theirs, &site, &Arc::default());
        let (mut reader, mut writer) = tokio::io::split(ours);
        let mut answers = 0;
        let mut buffer = vec![0; 64 * 1024];
        while writer.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.is_ok() {
            match reader.read(&mut buffer).await {
                Ok(1..) => answers += 1,
                _ => break,
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!((30..=90).contains(&answers), "{answers} answers over one connection");
    });
}

#[test]
fn where_seats_are_wanted_the_longest_silent_give_way_and_nobody_else() {
    let (site, wanted) = (site(None), Arc::new(Notify::new()));
    runtime().block_on(async {
        let open = || {
            let (ours, theirs) = duplex(64 * 1024);
            (serve(theirs, &site, &wanted), ours)
        };
        let whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let (busy, mut asking) = open();
        let (halfway, mut half) = open();
        half.write_all(b"GET /healthz HT").await.unwrap();
        tokio::time::sleep(CROWDED_PATIENCE / 2).await;
        let (silent, _nothing) = open();
        for _ in 0..3 {
            tokio::time::sleep(CROWDED_PATIENCE / 2).await;
            asking.write_all(whole).await.unwrap();
            assert!(asking.read(&mut [0; 4096]).await.unwrap() > 0);
        }
        let ended = || [&busy, &halfway, &silent].map(JoinHandle::is_finished);
        assert_eq!(ended(), [false; 3], "nobody wants their seats");
        for ends in [[false, true, false], [false, true, true], [false, true, true]] {
            wanted.notify_one();
            tokio::time::sleep(CROWDED_PATIENCE / 8).await;
            assert_eq!(ended(), ends);
        }
        // The last notice waits until somebody is silent for long enough.
        tokio::time::sleep(CROWDED_PATIENCE).await;
        assert_eq!(ended(), [true; 3]);
    });
}

proptest! {
    #[test]
    fn whatever_comes_the_connection_ends(
        bytes in prop::collection::vec(any::<u8>(), 0..2000), is_ended in any::<bool>(),
    ) {
        converse(&site(None), &bytes, is_ended);
    }

    #[test]
    fn near_misses_are_answered_or_refused(
        method in "GET|HEAD|POST|OPTIONS|CONNECT|[A-Z]{1,8}",
        path in "(/|/metrics|/healthz|/api/v1/(status|guests|history|checkpoints|jobs|openapi.json)|/api/v1/guests/[a-z%0-9]{0,8}(/map)?)(\\?[a-z=&0-9%]{0,20})?|\\*|[!-~]{1,30}",
        version in "HTTP/1\\.[01]|HTTP/[0-9]\\.[0-9]",
        headers in prop::collection::vec("(Host|host|Authorization|Content-Length|Transfer-Encoding|Connection|Upgrade|Expect|[A-Za-z-]{1,12}): ?([ -~]{0,30}|localhost|chunked|18446744073709551615|-1|close|100-continue)", 0..8),
        has_host in any::<bool>(),
        body in prop::collection::vec(any::<u8>(), 0..100),
        is_ended in any::<bool>(),
    ) {
        let host = if has_host { "Host: localhost\r\n" } else { "" };
        let head = format!("{method} {path} {version}\r\n{host}{}\r\n\r\n", headers.join("\r\n"));
        let mut sent = head.into_bytes();
        sent.extend(body);
        converse(&site(None), &sent, is_ended);
    }
}
