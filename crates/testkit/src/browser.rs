//! A real browser without a window, for pages that the daemon serves.
//!
//! `cargo xtask setup` unpacks Debian's Chromium into the kit. It is driven by the DevTools protocol
//! over two pipes (`--remote-debugging-pipe`): JSON messages, each with a zero byte behind it.
//!
//! Concurrency: a [`Browser`] is used by one thread at a time.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::guest::Kit;

/// How long anything on a page, and any one answer, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most that one message from the browser may be: a screenshot is some megabytes.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// A browser with one page; dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Messages<ChildStdout>,
    session: Option<String>,
    last_id: u64,
    complaints: Vec<String>,
    /// Its profile, fonts' list and log.
    directory: TempDir,
}

impl Browser {
    /// Starts the kit's browser; `None` where set-up has not fetched it.
    ///
    /// # Errors
    /// When it does not start, or does not speak.
    pub fn start() -> io::Result<Option<Self>> {
        let kit = Kit::of_checkout();
        let Some(part) = kit.browser() else { return Ok(None) };
        let directory = tempfile::tempdir()?;
        let fonts = directory.path().join("fonts.conf");
        std::fs::write(&fonts, fonts_text(&part, directory.path()))?;
        // The browser reads orders from descriptor 3 and writes answers to 4; nothing else of ours is
        // to be in its way.
        let script = "exec 3<&0 4>&1 </dev/null >/dev/null; exec \"$@\"";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .arg(part.join("usr/lib/chromium/chromium-headless-shell"));
        command.args([
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ]);
        command.arg(format!("--user-data-dir={}", directory.path().join("profile").display()));
        command.env("HOME", directory.path()).env("FONTCONFIG_FILE", &fonts);
        command.env("LD_LIBRARY_PATH", library_path(&part));
        let log = std::fs::File::create(directory.path().join("log"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn()?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        let mut browser = Self {
            child,
            orders,
            answers: Messages::new(answers),
            session: None,
            last_id: 0,
            complaints: Vec::new(),
            directory,
        };
        browser.open_page()?;
        Ok(Some(browser))
    }

    fn open_page(&mut self) -> io::Result<()> {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let parameters = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", parameters)?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            self.call(domain, json!({}))?;
        }
        Ok(())
    }

    /// Has the page be of this size, in light or dark.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn show_as(&mut self, width: u32, height: u32, dark: bool) -> io::Result<()> {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }))?;
        Ok(())
    }

    /// Goes to an address, and waits until what is there is loaded.
    ///
    /// # Errors
    /// When there is nothing, or it takes longer than a minute.
    pub fn open(&mut self, url: &str) -> io::Result<()> {
        let answer = self.call("Page.navigate", json!({ "url": url }))?;
        match answer["errorText"].as_str() {
            Some(error) => Err(io::Error::other(format!("{url}: {error}"))),
            None => self.wait_until("document.readyState === 'complete'"),
        }
    }

    /// What an expression of JavaScript is on the page, once it is settled if it is a promise.
    ///
    /// # Errors
    /// When it throws.
    pub fn evaluate(&mut self, expression: &str) -> io::Result<Value> {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", parameters)?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(io::Error::other(format!("{expression}: {thrown}"))),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Waits until an expression is true.
    ///
    /// # Errors
    /// When that takes longer than a minute, or it throws.
    pub fn wait_until(&mut self, expression: &str) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(expression)? != json!(true) {
            if Instant::now() > deadline {
                let text = self.evaluate("document.body.innerText")?;
                return Err(io::Error::other(format!("never true: {expression}\n{text}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Moves the mouse to a point of the window.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn point_at(&mut self, x: f64, y: f64) -> io::Result<()> {
        let parameters = json!({ "type": "mouseMoved", "x": x, "y": y });
        self.call("Input.dispatchMouseEvent", parameters).map(drop)
    }

    /// Presses and releases a key, by its name in JavaScript (`ArrowRight`, `Escape`, `t`).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn press(&mut self, key: &str) -> io::Result<()> {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        // What is no name is a character.
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let parameters =
                json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", parameters)?;
        }
        Ok(())
    }

    /// The page as it looks, as PNG.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn screenshot(&mut self) -> io::Result<Vec<u8>> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }))?;
        let data = answer["data"].as_str().unwrap_or_default();
        decode_base64(data).ok_or_else(|| io::Error::other("a screenshot that is not base64"))
    }

    /// What the page complained about so far: errors and warnings on its console, exceptions, what could
    /// not be loaded.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Has the browser do something by its protocol's name, and returns its answer.
    ///
    /// # Errors
    /// When it refuses, has ended, or does not answer within a minute.
    pub fn call(&mut self, method: &str, parameters: Value) -> io::Result<Value> {
        self.last_id += 1;
        let mut order = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.orders.write_all(order.to_string().as_bytes())?;
        self.orders.write_all(&[0])?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.hear(deadline, method)?;
            if message["id"] == self.last_id {
                return match message.get("error") {
                    Some(error) => Err(io::Error::other(format!("{method}: {error}"))),
                    None => Ok(message["result"].clone()),
                };
            }
            self.note(&message);
        }
    }

    fn hear(&mut self, deadline: Instant, method: &str) -> io::Result<Value> {
        let message = self.answers.next(deadline).map_err(|error| {
            let log = std::fs::read_to_string(self.directory.path().join("log"));
            let log = log.unwrap_or_default();
            io::Error::new(error.kind(), format!("{method}: the browser {error}:\n{log}"))
        })?;
        serde_json::from_slice(&message).map_err(io::Error::other)
    }

    /// Takes in what happened on the page.
    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => Some(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => Some(parameters["entry"].to_string()),
            Some("Runtime.consoleAPICalled") => {
                let is_bad = ["error", "warning", "assert"].map(Value::from);
                is_bad.contains(&parameters["type"]).then(|| parameters["args"].to_string())
            }
            _ => None,
        };
        self.complaints.extend(complaint);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Messages out of a pipe, each with a zero byte behind it.
#[derive(Debug)]
struct Messages<R> {
    pipe: R,
    /// What was read and not taken yet.
    heard: Vec<u8>,
    /// How many bytes of it are known to hold no end of a message.
    searched: usize,
}

impl<R: Read + AsFd> Messages<R> {
    fn new(pipe: R) -> Self {
        Self { pipe, heard: Vec::new(), searched: 0 }
    }

    /// The next message, without the byte behind it.
    ///
    /// # Errors
    /// When it is not there, whole, by `deadline`, is too long, or the other side has ended.
    fn next(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            let rest = &self.heard[self.searched..];
            if let Some(end) = rest.iter().position(|byte| *byte == 0) {
                let next = self.heard.split_off(self.searched + end + 1);
                let mut message = std::mem::replace(&mut self.heard, next);
                self.searched = 0;
                message.pop();
                return Ok(message);
            }
            self.searched = self.heard.len();
            if self.heard.len() > MESSAGE_BYTES_MAX {
                return Err(io::Error::other("does not end its message"));
            }
            self.read_some(deadline)?;
        }
    }

    fn read_some(&mut self, deadline: Instant) -> io::Result<()> {
        self.wait(deadline)?;
        let mut part = [0; 1 << 16];
        match self.pipe.read(&mut part)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "has ended")),
            count => {
                self.heard.extend_from_slice(&part[..count]);
                Ok(())
            }
        }
    }

    /// Waits until a read does not wait.
    fn wait(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut files = [PollFd::new(&self.pipe, PollFlags::IN)];
            match poll(&mut files, Some(&left)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "does not answer")),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn library_path(part: &Path) -> String {
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"]
        .map(|below| part.join(below).display().to_string())
        .join(":")
}

/// Only the kit's fonts, so that pages look the same everywhere.
fn fonts_text(part: &Path, scratch: &Path) -> String {
    format!(
        "<?xml version=\"1.0\"?><!DOCTYPE fontconfig SYSTEM \"fonts.dtd\"><fontconfig><dir>{}</dir>\
         <cachedir>{}</cachedir></fontconfig>",
        part.join("usr/share/fonts").display(),
        scratch.join("fonts").display()
    )
}

/// RFC 4648, section 4.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let value = |byte: u8| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(value(byte)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_waited_for_until_the_deadline_and_no_longer() {
        let (pipe, mut browser) = io::pipe().unwrap();
        let mut messages = Messages::new(pipe);
        let mut next = |patience_ms| {
            let answer = messages.next(Instant::now() + Duration::from_millis(patience_ms));
            answer.map(|text| String::from_utf8(text).unwrap()).map_err(|error| error.kind())
        };
        assert_eq!(next(10), Err(io::ErrorKind::TimedOut), "nothing is said");
        browser.write_all(b"ab").unwrap();
        assert_eq!(next(10), Err(io::ErrorKind::TimedOut), "half a message");
        browser.write_all(b"c\0d\0\0e").unwrap();
        let told = [next(60_000), next(60_000), next(60_000)];
        assert_eq!(told.map(Result::unwrap), ["abc", "d", ""]);
        drop(browser);
        assert_eq!(next(60_000), Err(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn base64_is_decoded() {
        let decoded = |text| decode_base64(text).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(decoded("Zm9vYmFy").as_deref(), Some("foobar"));
        assert_eq!(decoded("Zm9vYg==").as_deref(), Some("foob"));
        assert_eq!(decoded("Zm9vYmE=").as_deref(), Some("fooba"));
        assert_eq!(decoded("").as_deref(), Some(""));
        assert_eq!(decoded("Zm9v!"), None);
    }
}
