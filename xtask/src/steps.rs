//! A list of steps, each with a name and a time, and the table that closes it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Runs steps in order. A step that fails does not keep the next from running: the table then
/// shows all that is wrong at once.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<Done>,
}

#[derive(Debug)]
struct Done {
    name: String,
    time: Duration,
    passed: bool,
}

impl Steps {
    /// Runs one step, with a heading.
    pub(crate) fn run(&mut self, name: impl Into<String>, step: impl FnOnce() -> Result<()>) {
        let name = name.into();
        println!("\n== {name}");
        let start = Instant::now();
        let passed = match step() {
            Ok(()) => true,
            Err(error) => {
                eprintln!("{name}: {error:#}");
                false
            }
        };
        self.done.push(Done { name, time: start.elapsed(), passed });
    }

    /// Prints the table.
    ///
    /// Fails when a step did.
    pub(crate) fn finish(self) -> Result<()> {
        println!("\n== summary");
        for Done { name, time, passed } in &self.done {
            let verdict = if *passed { "ok" } else { "FAILED" };
            println!("{name:<40} {:>8.1} s  {verdict}", time.as_secs_f64());
        }
        let failed: Vec<&str> =
            self.done.iter().filter(|step| !step.passed).map(|step| step.name.as_str()).collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }
}
