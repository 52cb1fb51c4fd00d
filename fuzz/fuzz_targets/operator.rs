//! What operators send to the daemon, and what the daemon answers to them: lines of JSON.
#![no_main]

use bindery_host::client::decode_answer;
use bindery_host::daemon_settings::DaemonSettings;
use bindery_host::protocol::{
    Answer, Failure, FailureKind, LINE_BYTES_MAX, Request, decode_request, encode_line,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: &[u8]| {
    for line in lines.split(|byte| *byte == b'\n') {
        ask(line);
        answer(line);
    }
});

/// A line is a request, which comes back as it went, or a failure that can be told.
fn ask(line: &[u8]) {
    let request = match decode_request(line) {
        Ok(request) => request,
        Err(failure) => return tell(failure, line),
    };
    let encoded = encode_line(&request);
    assert_eq!(decode_request(&encoded).as_ref(), Ok(&request));
    // What was not said is left out: no field grows.
    assert!(encoded.len() <= 2 * line.len() + 64, "{} bytes of {}", encoded.len(), line.len());
    if let Request::Set(change) = request {
        match change.apply(&DaemonSettings::with_workers(2)) {
            Ok(settings) => settings.check().expect("what is taken can be"),
            Err(refused) => tell(Failure::new(FailureKind::BadSetting, refused.message), line),
        }
    }
}

/// A failure goes out as one line, which is no longer than what caused it but for what is said.
fn tell(failure: Failure, line: &[u8]) {
    let answer = Answer::Error(failure);
    let encoded = encode_line(&answer);
    assert_eq!(encoded.iter().position(|byte| *byte == b'\n'), Some(encoded.len() - 1));
    assert!(encoded.len() <= 16 * line.len() + LINE_BYTES_MAX, "{} bytes", encoded.len());
    assert_eq!(decode_answer(&encoded).expect("an answer is one"), answer);
}

/// What a client takes for an answer comes back as it went.
fn answer(line: &[u8]) {
    if let Ok(answer) = decode_answer(line) {
        let encoded = encode_line(&answer);
        assert_eq!(decode_answer(&encoded).expect("an answer is one"), answer);
    }
}
