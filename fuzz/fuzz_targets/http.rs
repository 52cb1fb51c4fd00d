//! What anybody sends over HTTP: every byte that comes back is part of an answer, and the connection
//! ends.
#![no_main]

use bindery_host::http_alone::converse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: (bool, bool, &[u8])| {
    let (has_token, is_ended, bytes) = sent;
    let token = has_token.then_some("0123456789abcdef");
    let mut heard = &*converse(token, bytes, is_ended);
    while !heard.is_empty() {
        heard = answer(heard);
    }
});

/// Checks the first answer and returns what follows it.
fn answer(heard: &[u8]) -> &[u8] {
    let end = position(heard, b"\r\n\r\n").expect("an answer has a head");
    let head = std::str::from_utf8(&heard[..end]).expect("of letters");
    let rest = &heard[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.").map(|line| &line[2..5]));
    let status: u16 = status.and_then(|status| status.parse().ok()).expect("a status");
    assert!((200..500).contains(&status) || status == 100, "{head}");
    // Of HEAD there is a length and no body.
    if status == 100 || rest.is_empty() || rest.starts_with(b"HTTP/1.") {
        return rest;
    }
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then_some(value)
    });
    let length: usize = length.expect("a body has a length").parse().expect("a number");
    rest.get(length..).expect("a body is whole")
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
