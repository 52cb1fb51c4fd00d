//! A client of QEMU's machine protocol: what tests need of it, and no more.
//!
//! One JSON object a line each way (`docs/interop/qmp-spec` of QEMU). Events that arrive between a
//! command and its answer are kept for [`Qmp::wait_event`].

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Why QEMU's monitor gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket failed, or QEMU took longer than the time limit.
    #[error("QEMU's monitor cannot be reached ({0}); has QEMU ended?")]
    Io(#[from] io::Error),
    /// What came is not QMP.
    #[error("QEMU's monitor answered with something that is not QMP: {0}")]
    Malformed(String),
    /// QEMU refused the command.
    #[error("QEMU refused `{command}`: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's own words.
        description: String,
    },
    /// A long-running operation ended badly, or not in time.
    #[error("QEMU's {operation} ended as {state}")]
    Failed {
        /// What was going on.
        operation: &'static str,
        /// Its last state.
        state: String,
    },
}

/// The longest that QEMU may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the state of a migration or of the balloon is asked for.
const POLL: Duration = Duration::from_millis(50);

/// A connection to one QEMU's monitor.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    events: VecDeque<Value>,
}

impl Qmp {
    /// Connects and leaves the negotiation mode.
    ///
    /// # Errors
    /// [`QmpError`] when nobody listens or what answers is not QMP.
    pub fn connect(socket: &Path) -> Result<Self, QmpError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut qmp = Self { reader: BufReader::new(stream), events: VecDeque::new() };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Malformed(greeting.to_string()));
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns what it answers. Blocks for a minute at most.
    ///
    /// # Errors
    /// [`QmpError::Refused`] with QEMU's words, or the failures of the connection.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut message = self.read()?;
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = message.get("error") {
                let description = error["desc"].as_str().unwrap_or_default().to_owned();
                return Err(QmpError::Refused { command: command.to_owned(), description });
            }
            self.events.push_back(message);
        }
    }

    /// Waits for an event by name and returns it; earlier events are dropped.
    ///
    /// # Errors
    /// [`QmpError::Io`] when it has not come in time.
    pub fn wait_event(&mut self, name: &str, timeout: Duration) -> Result<Value, QmpError> {
        let deadline = Instant::now() + timeout;
        loop {
            while let Some(event) = self.events.pop_front() {
                if event["event"] == name {
                    return Ok(event);
                }
            }
            if Instant::now() >= deadline {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            // Any command makes QEMU deliver what is pending.
            self.execute("query-status", &json!({}))?;
            std::thread::sleep(POLL);
        }
    }

    /// Takes the events that came so far, in their order.
    ///
    /// # Errors
    /// As [`Self::execute`]: a command makes QEMU deliver what is pending.
    pub fn take_events(&mut self) -> Result<Vec<Value>, QmpError> {
        self.execute("query-status", &json!({}))?;
        Ok(self.events.drain(..).collect())
    }

    /// Runs a command of the human monitor, for what QMP has no command for.
    ///
    /// # Errors
    /// As [`Self::execute`]; the human monitor's own complaints come as text in the answer.
    pub fn human(&mut self, command_line: &str) -> Result<String, QmpError> {
        let answer =
            self.execute("human-monitor-command", &json!({ "command-line": command_line }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Saves the whole machine under a name in its first qcow2 disk. The guest stands meanwhile.
    ///
    /// # Errors
    /// [`QmpError::Refused`] with what QEMU complains of.
    pub fn savevm(&mut self, name: &str) -> Result<(), QmpError> {
        self.human_silent(&format!("savevm {name}"))
    }

    /// Brings a saved machine back.
    ///
    /// # Errors
    /// [`QmpError::Refused`] with what QEMU complains of.
    pub fn loadvm(&mut self, name: &str) -> Result<(), QmpError> {
        self.human_silent(&format!("loadvm {name}"))
    }

    fn human_silent(&mut self, command: &str) -> Result<(), QmpError> {
        let complaint = self.human(command)?;
        if complaint.trim().is_empty() {
            return Ok(());
        }
        Err(QmpError::Refused {
            command: command.to_owned(),
            description: complaint.trim().to_owned(),
        })
    }

    /// Sets the balloon's target: the memory that the guest may keep, in bytes. Does not wait.
    ///
    /// # Errors
    /// [`QmpError::Refused`] when the guest has no balloon.
    pub fn balloon(&mut self, bytes: u64) -> Result<(), QmpError> {
        self.execute("balloon", &json!({ "value": bytes })).map(drop)
    }

    /// The memory that the balloon leaves the guest now, in bytes.
    ///
    /// # Errors
    /// [`QmpError::Refused`] when the guest has no balloon or its driver is not up yet.
    pub fn balloon_actual(&mut self) -> Result<u64, QmpError> {
        let answer = self.execute("query-balloon", &json!({}))?;
        answer["actual"].as_u64().ok_or_else(|| QmpError::Malformed(answer.to_string()))
    }

    /// Sends the machine to `uri` (`unix:…`, `exec:…`) and waits until all of it is there.
    ///
    /// # Errors
    /// [`QmpError::Failed`] when the migration fails or takes longer than `timeout`.
    pub fn migrate(&mut self, uri: &str, timeout: Duration) -> Result<Value, QmpError> {
        self.execute("migrate", &json!({ "uri": uri }))?;
        let deadline = Instant::now() + timeout;
        loop {
            let answer = self.execute("query-migrate", &json!({}))?;
            let state = answer["status"].as_str().unwrap_or("none");
            match state {
                "completed" => return Ok(answer),
                "failed" | "cancelled" => {
                    let why = answer["error-desc"].as_str().unwrap_or_default();
                    let state = format!("{state} {why}");
                    return Err(QmpError::Failed { operation: "migration", state });
                }
                _ if Instant::now() >= deadline => {
                    let state = format!("still {state} after {timeout:?}");
                    return Err(QmpError::Failed { operation: "migration", state });
                }
                _ => std::thread::sleep(POLL),
            }
        }
    }

    fn read(&mut self) -> Result<Value, QmpError> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        serde_json::from_str(&line).map_err(|_| QmpError::Malformed(line))
    }
}
