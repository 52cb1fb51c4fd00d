//! The dashboard in a real browser: it loads, draws, answers to mouse and keys, and complains of
//! nothing.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;
#[path = "common/http.rs"]
mod http;
#[path = "common/kept.rs"]
mod kept;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bindery_checkpoint::Capture;
use bindery_sys::process::effective_user;
use bindery_testkit::browser::Browser;
use bindery_testkit::skipped;
use common::{PATIENCE, TestDaemon};
use guest::{TestGuest, can_manage};
use http::Http;
use kept::{Kept, captured};

#[test]
#[ignore = "the guests' process of the other tests, not a test of its own"]
fn guest_process() {
    guest::live();
}

const FAST: [&str; 6] = ["--http", "127.0.0.1:0", "--period", "200ms", "--workers", "2"];

fn browser() -> Option<Browser> {
    let browser = Browser::start().unwrap();
    if browser.is_none() {
        skipped!("there is no browser to look at the dashboard: run `cargo xtask setup`");
    }
    browser
}

/// Whether a canvas has more than one colour.
const HAS_PICTURE: &str = "(canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const context = copy.getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] > 0) colours.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
    }
    return colours.size > 1;
}";

/// The middle of what a selector finds, in the window.
fn middle(browser: &mut Browser, selector: &str) -> (f64, f64) {
    let expression = format!(
        "(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
    );
    let place = browser.evaluate(&expression).unwrap();
    (place[0].as_f64().unwrap(), place[1].as_f64().unwrap())
}

/// For whoever wants to look at the page: the directory is named in `BINDERY_SCREENSHOTS`.
fn keep(browser: &mut Browser, name: &str) {
    let png = browser.screenshot().unwrap();
    assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "an empty page: {name}");
    if let Some(directory) = std::env::var_os("BINDERY_SCREENSHOTS") {
        std::fs::write(std::path::Path::new(&directory).join(name), png).unwrap();
    }
}

#[test]
fn the_dashboard_draws_guests_and_answers_to_mouse_and_keys() {
    if !can_manage("the_dashboard_draws_guests_and_answers_to_mouse_and_keys") {
        return;
    }
    let Some(mut browser) = browser() else { return };
    let daemon = TestDaemon::start(&FAST);
    let http = Http::of(&daemon);
    browser.show_as(1280, 900, false).unwrap();
    browser.open(&format!("http://{}/", http.0)).unwrap();
    browser.wait_until("!document.getElementById('no-guests').hidden").unwrap();
    let guests: Vec<TestGuest> =
        (0..5).map(|at| TestGuest::start(&daemon.socket(), &format!("web-{at}"), "web")).collect();
    browser.wait_until("document.querySelectorAll('.guest').length === 5").unwrap();
    let drawn = format!(
        "[...document.querySelectorAll('.guest canvas, .tile canvas')].every({HAS_PICTURE})"
    );
    browser.wait_until(&drawn).unwrap();
    browser
        .wait_until("document.querySelector('#tile-saved .value').textContent.includes('MiB')")
        .unwrap();
    browser.wait_until("document.querySelector('#domains td').textContent === 'web of user 0' || document.querySelector('#domains td').textContent.startsWith('web of user')").unwrap();
    keep(&mut browser, "light.png");

    // The mouse: a square of a map, and a time of a chart.
    let tip = "document.getElementById('tip')";
    let (x, y) = middle(&mut browser, ".guest canvas");
    browser.point_at(x, y).unwrap();
    browser.wait_until(&format!("!{tip}.hidden && /of 16 pages/.test({tip}.textContent)")).unwrap();
    keep(&mut browser, "hover.png");
    let (x, y) = middle(&mut browser, "#tile-cpu canvas");
    browser.point_at(x * 1.05, y).unwrap();
    browser.wait_until(&format!("/daemon/.test({tip}.textContent)")).unwrap();
    browser.point_at(2.0, 2.0).unwrap();
    browser.wait_until(&format!("{tip}.hidden")).unwrap();

    // The keys: filter, a guest's page, its squares, the other colours.
    browser.press("/").unwrap();
    browser.wait_until("document.activeElement.id === 'filter'").unwrap();
    browser.evaluate("(() => { const f = document.getElementById('filter'); f.value = 'web-3'; f.dispatchEvent(new Event('input')); })()").unwrap();
    browser.wait_until("document.querySelectorAll('.guest').length === 1").unwrap();
    browser.evaluate("document.querySelector('.guest canvas').focus()").unwrap();
    browser.press("Enter").unwrap();
    browser.wait_until("document.getElementById('detail').open").unwrap();
    browser.wait_until(&format!("({HAS_PICTURE})(document.getElementById('detail-map'))")).unwrap();
    browser.press("ArrowRight").unwrap();
    browser.wait_until(&format!("!{tip}.hidden && /merged/.test({tip}.textContent)")).unwrap();
    browser.press("ArrowDown").unwrap();
    keep(&mut browser, "detail.png");
    browser.press("Escape").unwrap();
    browser.wait_until("!document.getElementById('detail').open").unwrap();
    browser.evaluate("document.activeElement.blur()").unwrap();
    browser.press("t").unwrap();
    browser.wait_until("document.documentElement.dataset.theme === 'dark'").unwrap();
    browser.show_as(390, 800, true).unwrap();
    browser.wait_until("document.documentElement.scrollWidth <= 390").unwrap();
    keep(&mut browser, "narrow.png");

    // Guests that leave, and a daemon that does.
    browser.evaluate("(() => { const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input')); })()").unwrap();
    drop(guests);
    browser.wait_until("document.querySelectorAll('.guest').length === 0").unwrap();
    assert_eq!(browser.complaints(), [] as [&str; 0]);
    drop(daemon);
    browser
        .wait_until("document.getElementById('link').textContent.includes('does not answer')")
        .unwrap();
}

#[test]
fn the_dashboard_shows_checkpoints_on_a_time_line() {
    let Some(mut browser) = browser() else { return };
    let kept = Kept::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    kept.write(|store| {
        for (number, guest) in ["web1", "web2", "db=lab"].into_iter().enumerate() {
            for round in 0..12 {
                let at = now - Duration::from_secs(600 * (12 - round) + 40 * number as u64);
                let pages: Vec<u64> = (0..40).map(|page| page + 17 * (round % 3 + 1)).collect();
                let own = 1000 * (round + 1) + 100_000 * number as u64;
                let pages = [pages, (own..own + 5 + 11 * (round % 4)).collect()].concat();
                let pause_us = (round != 5).then_some(3_100 + 700 * (round % 5));
                let capture = Some(Capture { pause_us, rounds: 2 });
                let domain = format!("{}:default", effective_user());
                let names = (&*domain, guest, &*format!("every-{round}"));
                captured(store, names, &pages, (at.as_nanos() as u64, capture));
            }
        }
    });
    let daemon = kept.daemon_with(&["--http", "127.0.0.1:0"]);
    let http = Http::of(&daemon);
    browser.show_as(1280, 900, false).unwrap();
    browser.open(&format!("http://{}/", http.0)).unwrap();
    browser.wait_until("document.querySelectorAll('.lane').length === 3").unwrap();
    let drawn = format!("[...document.querySelectorAll('.lane canvas')].every({HAS_PICTURE})");
    browser.wait_until(&drawn).unwrap();
    browser
        .wait_until("/^12, own/.test(document.querySelector('.lane .facts').textContent)")
        .unwrap();
    keep(&mut browser, "checkpoints-light.png");
    let tip = "document.getElementById('tip')";
    let (x, y) = middle(&mut browser, ".lane canvas");
    browser.point_at(x, y).unwrap();
    browser
        .wait_until(&format!("!{tip}.hidden && /db@lab@every-.*pause/.test({tip}.textContent)"))
        .unwrap();
    keep(&mut browser, "checkpoints-hover.png");
    browser.evaluate("document.querySelectorAll('.lane canvas')[1].focus()").unwrap();
    browser.press("ArrowLeft").unwrap();
    browser.wait_until(&format!("/web1@every-11/.test({tip}.textContent)")).unwrap();
    browser.press("ArrowLeft").unwrap();
    browser.wait_until(&format!("/web1@every-10/.test({tip}.textContent)")).unwrap();
    browser.evaluate("document.activeElement.blur()").unwrap();
    browser.press("t").unwrap();
    browser.wait_until("document.documentElement.dataset.theme === 'dark'").unwrap();
    browser.show_as(390, 800, true).unwrap();
    browser.wait_until("document.documentElement.scrollWidth <= 390").unwrap();
    browser.evaluate("showJobs([{ job: 1, kind: 'checkpoint-create', subject: 'web1@before-upgrade', phase: 'copying memory', unit: 'pages', done: 31, total: 100, elapsed_ms: 1200, is_cancelled: false }, { job: 2, kind: 'checkpoint-restore', subject: 'db@lab@every-3', phase: 'binding memory', unit: 'pages', done: 0, total: null, elapsed_ms: 12, is_cancelled: false }]); document.getElementById('jobs').scrollIntoView()").unwrap();
    keep(&mut browser, "jobs-narrow.png");
    browser.evaluate("document.getElementById('kept').scrollIntoView()").unwrap();
    keep(&mut browser, "checkpoints-narrow.png");

    // What is deleted goes from the page.
    kept.done(&daemon, &["delete", "web2", "--keep", "0"]);
    browser.wait_until("document.querySelectorAll('.lane').length === 2").unwrap();
    browser.evaluate("(() => { const f = document.getElementById('filter'); f.value = 'lab'; f.dispatchEvent(new Event('input')); })()").unwrap();
    browser.wait_until("document.querySelectorAll('.lane').length === 1").unwrap();
    assert_eq!(browser.complaints(), [] as [&str; 0]);
}

#[test]
fn the_dashboard_takes_its_token_from_the_fragment_or_asks_for_it() {
    let Some(mut browser) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "correct-horse-battery\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let token = token.to_str().unwrap();
    let daemon = TestDaemon::start(&["--http", "127.0.0.1:0", "--http-token-file", token]);
    let url = format!("http://{}/", Http::of(&daemon).0);
    browser.open(&format!("{url}#token=correct-horse-battery")).unwrap();
    browser.wait_until("!document.getElementById('main').hidden").unwrap();
    browser.wait_until("location.href.endsWith('/') && !location.href.includes('token')").unwrap();
    browser.evaluate("sessionStorage.clear()").unwrap();
    browser.open("about:blank").unwrap();
    browser.open(&url).unwrap();
    browser.wait_until("location.href.startsWith('http') && document.getElementById('ask') && !document.getElementById('ask').hidden").unwrap();
    let enter = |browser: &mut Browser, token: &str| {
        let expression = format!(
            "(() => {{ document.getElementById('token').value = '{token}'; document.getElementById('ask').requestSubmit(); }})()"
        );
        browser.evaluate(&expression).unwrap();
    };
    enter(&mut browser, "a wrong one");
    browser
        .wait_until("document.getElementById('ask-problem').textContent.includes('not the')")
        .unwrap();
    // Signs that no header can carry are no way to get stuck.
    browser.evaluate("document.getElementById('ask-problem').textContent = ''").unwrap();
    enter(&mut browser, "пароль");
    let is_refused = "!document.getElementById('ask').hidden && document.getElementById('ask-problem').textContent.includes('not the')";
    browser.wait_until(is_refused).unwrap();
    let is_shown =
        "!document.getElementById('main').hidden && document.getElementById('ask').hidden";
    enter(&mut browser, "correct-horse-battery");
    browser.wait_until(is_shown).unwrap();
    // An address with a token that is pasted while the form is open answers it.
    enter_address(&mut browser, "a-wrong-one");
    browser.wait_until(is_refused).unwrap();
    enter_address(&mut browser, "correct-horse-battery");
    browser.wait_until(is_shown).unwrap();
}

fn enter_address(browser: &mut Browser, token: &str) {
    browser.evaluate(&format!("void (location.hash = '#token={token}')")).unwrap();
}

/// A daemon that ended, and another at its address: by what it serves, its page takes it for the same.
#[test]
fn the_dashboard_starts_over_with_another_daemon_and_asks_nothing_of_who_is_gone() {
    let Some(mut browser) = browser() else { return };
    let daemon = TestDaemon::start(&FAST);
    let http = Http::of(&daemon);
    browser.open(&format!("http://{}/", http.0)).unwrap();
    browser.wait_until("samples.next >= 2").unwrap();
    // It asks nothing while its form is open: until the other daemon has samples of the same numbers.
    browser.evaluate("document.getElementById('ask').hidden = false").unwrap();
    let reached = browser.evaluate("samples.next").unwrap().as_u64().unwrap();
    drop(daemon);
    let address = http.0.to_string();
    let daemon = TestDaemon::start(&["--http", &address, "--period", "200ms", "--workers", "2"]);
    assert_eq!(Http::of(&daemon).0, http.0);
    let deadline = Instant::now() + PATIENCE;
    while http.json("/api/v1/history")["next"].as_u64().unwrap() < reached + 3 {
        assert!(Instant::now() < deadline, "no samples: {}", daemon.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let began = http.json("/api/v1/history")["began_unix_ms"].clone();
    browser.evaluate("document.getElementById('ask').hidden = true").unwrap();
    browser.wait_until(&format!("samples.began === {began}")).unwrap();
    // All of the new daemon's samples, and none of the old one's.
    let is_whole = "samples.columns.time_ms.length === samples.next && samples.columns.time_ms.every((time, at, all) => at === 0 || time > all[at - 1])";
    assert_eq!(browser.evaluate(is_whole).unwrap(), true);

    // Of two guests of one name the one that is connected is shown; of the others no map is asked for.
    let asked = "(() => {
        const guest = (name, state, pid) => ({ name, pid, domain: 'd', state: { name: state, advice: null },
            ram_bytes: 1, merged_bytes: 0, zero_bytes: 0, private_bytes: 0, breaks: 0 });
        const [real, paths] = [ask, []];
        ask = async (path) => { paths.push(path); throw new Error('not asked'); };
        showGuests([guest('a', 'merging', 1), guest('a', 'disconnected', 2), guest('b', 'disconnected', 3)]);
        for (const card of cards.values()) [card.isSeen, card.askedAt] = [true, -1e6];
        for (let time = 0; time < 4; time += 1) refreshOldest();
        ask = real;
        return [cards.size, cards.get('a').guest.pid, ...paths];
    })()";
    let expected = serde_json::json!([2, 1, "guests/a/map?cells=512"]);
    assert_eq!(browser.evaluate(asked).unwrap(), expected);
}
