//! A crowd of processes that hold a data set: the guests of the benchmarks.

use std::{
    io::{BufRead, BufReader, Write},
    ops::Range,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{engine::Merger, merge::dataset::Dataset};

/// All processes of a data set.
pub(crate) struct Crowd(Vec<Guest>);

impl Crowd {
    /// Starts the processes and waits until their memory is filled.
    pub(crate) fn start(merger: &Merger, dataset: &Dataset) -> Result<Self> {
        Self::start_some(merger, dataset, 0..dataset.processes)
    }

    /// As [`Self::start`], but some of the processes only.
    pub(crate) fn start_some(
        merger: &Merger,
        dataset: &Dataset,
        processes: Range<u32>,
    ) -> Result<Self> {
        let guests = processes
            .map(|process| Guest::start(merger, dataset, process))
            .collect::<Result<_>>()?;
        let mut crowd = Self(guests);
        crowd.0.iter_mut().try_for_each(|guest| guest.expect("filled"))?;
        Ok(crowd)
    }

    /// Gives all memory up for merging, all processes at once.
    pub(crate) fn merge(&mut self) -> Result<()> {
        self.ask_all("merge", "given up")
    }

    /// Compares every page with what was written to it.
    pub(crate) fn verify(&mut self) -> Result<()> {
        self.ask_all("verify", "verified")
    }

    fn ask_all(&mut self, word: &str, answer: &str) -> Result<()> {
        self.0.iter_mut().try_for_each(|guest| guest.say(word))?;
        self.0.iter_mut().try_for_each(|guest| guest.expect(answer))
    }

    /// Has one process do something and returns its answer, a line.
    pub(crate) fn ask_one(&mut self, process: usize, word: &str) -> Result<String> {
        let guest = &mut self.0[process];
        guest.say(word)?;
        guest.answer()
    }

    /// The processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|guest| guest.process.id())
    }
}

/// A process with memory to merge.
struct Guest {
    process: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Guest {
    fn start(merger: &Merger, dataset: &Dataset, process: u32) -> Result<Self> {
        let mut words = merger.launcher(&format!("guest{process}"));
        let program = std::env::current_exe().context("finding this program")?;
        words.push(program.clone().into());
        let mut process = Command::new(&words[0])
            .args(&words[1..])
            .args(["guest-process", "--content", &dataset.content.to_string()])
            .args(["--pages", &dataset.pages.to_string()])
            .args(["--extent-pages", &dataset.extent_pages.to_string()])
            .args(["--processes", &dataset.processes.to_string()])
            .args(["--process", &process.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (Some(words), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both were asked for")
        };
        Ok(Self { process, words, answers: BufReader::new(answers) })
    }

    fn say(&mut self, word: &str) -> Result<()> {
        Ok(writeln!(self.words, "{word}")?)
    }

    fn expect(&mut self, answer: &str) -> Result<()> {
        let line = self.answer()?;
        ensure!(line == answer, "a guest's process said {line:?} instead of {answer:?}");
        Ok(())
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It is ours; nothing of it is needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
