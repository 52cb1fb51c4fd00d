//! What a scan prints.

use bindery_host::printable;
use bindery_units::PageCount;
use serde::Serialize;

use super::Input;
use super::tally::{InputTally, Tally, Total};
use crate::exit::Failure;
use crate::output::{Table, human_bytes, print, print_json};

/// Everything that a scan found.
#[derive(Serialize)]
pub(super) struct Report {
    inputs: Vec<InputReport>,
    total: Total,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct InputReport {
    input: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    /// Pages that are there: those shared already (KSM's, the zero page, a store's), zero, distinct and
    /// duplicate ones.
    pages: u64,
    /// Shared by KSM already; 0 where that cannot be known.
    ksm_pages: u64,
    /// Mapped as the kernel's zero page already.
    zero_page_mapped_pages: u64,
    /// Mapped from a bindery store already.
    bindery_merged_bytes: u64,
    zero_pages: u64,
    distinct_pages: u64,
    duplicate_pages: u64,
    swapped_pages: u64,
    vanished_pages: u64,
    /// What this input would save on its own.
    saved_pages: u64,
}

impl Report {
    /// Puts together what was found of `inputs`.
    pub(super) fn new(inputs: &[Input], tally: Tally) -> Self {
        let reports = inputs.iter().zip(&tally.inputs).map(|(input, tally)| describe(input, tally));
        Self { inputs: reports.collect(), total: tally.total, notes: notes(inputs) }
    }

    /// Prints it.
    pub(super) fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        self.table().print()?;
        let total = &self.total;
        let percent = 100.0 * total.saved_pages as f64 / total.pages.max(1) as f64;
        print(|out| {
            writeln!(out)?;
            writeln!(out, "zero pages         {:>10}", human_pages(total.zero_pages))?;
            writeln!(out, "duplicates inside  {:>10}", human_pages(total.duplicate_pages_inside))?;
            writeln!(out, "duplicates across  {:>10}", human_pages(total.duplicate_pages_across))?;
            writeln!(
                out,
                "would save         {:>10}  {percent:.0}% of {}, before metadata",
                human_pages(total.saved_pages),
                human_pages(total.pages),
            )?;
            self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
        })
    }

    fn table(&self) -> Table {
        let mut table =
            Table::new(["INPUT", " MEMORY", " SHARED", " ZERO", " DUPLICATE", " DISTINCT"]);
        for input in &self.inputs {
            let shared = input.ksm_pages + input.zero_page_mapped_pages;
            let shared = PageCount(shared).bytes().0 + input.bindery_merged_bytes;
            table.row([
                input.input.clone(),
                human_pages(input.pages),
                human_bytes(shared),
                human_pages(input.zero_pages),
                human_pages(input.duplicate_pages),
                human_pages(input.distinct_pages),
            ]);
        }
        table
    }
}

fn human_pages(pages: u64) -> String {
    human_bytes(PageCount(pages).bytes().0)
}

fn describe(input: &Input, tally: &InputTally) -> InputReport {
    let (name, pid) = match input {
        Input::Process(process) => {
            (format!("{} ({})", process.pid(), process.command()), Some(process.pid()))
        }
        Input::Image(image) => (printable(&image.path().display().to_string()), None),
    };
    let counts = &tally.counts;
    InputReport {
        input: name,
        pid,
        pages: counts.pages,
        ksm_pages: counts.ksm_pages,
        zero_page_mapped_pages: counts.zero_page_mapped_pages,
        bindery_merged_bytes: PageCount(counts.store_pages).bytes().0,
        zero_pages: counts.zero_pages,
        distinct_pages: tally.distinct_pages,
        duplicate_pages: tally.duplicate_pages,
        swapped_pages: counts.swapped_pages,
        vanished_pages: counts.vanished_pages,
        saved_pages: counts.zero_pages + tally.duplicate_pages,
    }
}

/// What a reader of the numbers has to know.
fn notes(inputs: &[Input]) -> Vec<String> {
    let processes = || {
        inputs.iter().filter_map(|input| match input {
            Input::Process(process) => Some(process),
            Input::Image(_) => None,
        })
    };
    let mut notes = Vec::new();
    for input in inputs {
        let Input::Image(image) = input else { continue };
        if image.hole_bytes() > 0 {
            notes.push(format!(
                "{} has {} of holes, which are counted as zero pages and not read",
                printable(&image.path().display().to_string()),
                human_bytes(image.hole_bytes())
            ));
        }
    }
    for process in processes() {
        let (pid, maps) = (process.pid(), process.maps());
        if maps.shared_memory_bytes > 0 {
            notes.push(format!(
                "process {pid} has {} of shared memory (memfd, /dev/shm), which is not read",
                human_bytes(maps.shared_memory_bytes)
            ));
        }
        let ksm_pages = process.uncounted_ksm_pages();
        if ksm_pages > 0 {
            notes.push(format!(
                "KSM shares {} of process {pid} already; only root can tell which, so they are \
                 counted as if it did not",
                human_pages(ksm_pages)
            ));
        }
    }
    let mut users: Vec<u32> = processes().map(|process| process.uid()).collect();
    users.sort_unstable();
    users.dedup();
    if users.len() > 1 {
        notes.push(
            "the processes belong to different users, whose pages are never merged with each \
             other: scan each user's alone to see what can be saved"
                .into(),
        );
    }
    notes
}
