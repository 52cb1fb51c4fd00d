//! `bindery status`: the daemon and what its domains save.

use std::io::{self, Write};

use bindery_advisor::Mode;
use bindery_host::status::{DomainStatus, HostStatus, State};
use bindery_units::PageCount;
use bindery_wire::lane::BLOCK_PAGES;

use crate::args::Global;
use crate::connect::{ask_status, connect};
use crate::exit::Failure;
use crate::output::{human_bytes, human_signed_bytes, on_node, print, print_json};

/// Prints the status.
pub(crate) fn run(global: &Global) -> Result<(), Failure> {
    let status = ask_status(&mut connect(global)?)?;
    if global.json { print_json(&status) } else { print(|out| write_host(out, &status)) }
}

fn write_host(out: &mut dyn Write, status: &HostStatus) -> io::Result<()> {
    writeln!(
        out,
        "daemon {} of pid {}, user {}, up {} s: {} workers, period {} ms, CPU {:.1} s, memory {}",
        status.program_version,
        status.pid,
        status.uid,
        status.uptime_s,
        status.settings.workers,
        status.settings.period_ms,
        status.cpu_ms as f64 / 1000.0,
        human_bytes(status.resident_bytes),
    )?;
    write_advisor(out, status)?;
    if let Some(http) = status.http {
        writeln!(out, "dashboard: http://{http}/")?;
    }
    write_state(out, "state", &status.state)?;
    if status.domains.is_empty() {
        writeln!(out, "no guests; start one with `bindery run -- <vmm …>`")?;
    }
    status.domains.iter().try_for_each(|domain| {
        writeln!(out)?;
        write_domain(out, domain)
    })
}

fn write_advisor(out: &mut dyn Write, status: &HostStatus) -> io::Result<()> {
    let (advisor, reached) = (&status.settings.advisor, &status.advisor);
    let rest_ms = reached.rest_us / 1000;
    write!(out, "advisor {}: ", advisor.mode)?;
    match (advisor.mode, reached.pages_to_scan) {
        (Mode::None, None) => write!(out, "as fast as it goes")?,
        (Mode::None, Some(pages)) => write!(out, "{pages} pages in {rest_ms} ms")?,
        (_, pages) => write!(
            out,
            "target {} s, at most {}% of a CPU; {} pages in {rest_ms} ms",
            advisor.target_scan_time_s,
            advisor.max_cpu_percent,
            pages.unwrap_or_default(),
        )?,
    }
    writeln!(
        out,
        "; last scan {} pages in {:.1} s at {}%",
        reached.scan_pages,
        reached.scan_time_us as f64 / 1e6,
        reached.scan_cpu_percent,
    )
}

fn write_domain(out: &mut dyn Write, domain: &DomainStatus) -> io::Result<()> {
    let (name, node) = (&domain.name, on_node(domain.node));
    writeln!(out, "domain {name} of user {}{node}, {} guests", domain.uid, domain.guests)?;
    write_state(out, "  state", &domain.state)?;
    let counts = &domain.counts;
    let pages = |pages| human_bytes(PageCount(pages).bytes().0);
    for (name, value, text) in [
        ("pages_shared", domain.pages_shared, pages(domain.pages_shared)),
        ("pages_sharing", domain.pages_sharing, pages(domain.pages_sharing)),
        ("pages_unshared", counts.pages_unshared, pages(counts.pages_unshared)),
        ("pages_volatile", counts.pages_volatile, pages(counts.pages_volatile)),
        ("pages_pending", counts.pages_pending, pages(counts.pages_pending)),
        ("zero_pages", counts.zero_pages, pages(counts.zero_pages)),
        ("pages_foreign", counts.pages_foreign, pages(counts.pages_foreign)),
        ("pages_scanned", counts.pages_scanned, pages(counts.pages_scanned)),
    ] {
        writeln!(out, "  {name:<16} {value:>12}  {text:>9}")?;
    }
    let huge = human_bytes(PageCount(counts.huge_pages * u64::from(BLOCK_PAGES)).bytes().0);
    writeln!(
        out,
        "  {:<16} {:>12}  {huge:>9}  {} split now; {} split so far, {} kept for their writes, {} made again",
        "huge_pages",
        counts.huge_pages,
        counts.huge_pages_split,
        counts.huge_splits,
        counts.huge_kept_hot,
        counts.collapses_thin + counts.collapses_hot,
    )?;
    writeln!(out, "  {:<16} {:>12}", "full_scans", domain.full_scans)?;
    writeln!(out, "  {:<16} {:>12}", "breaks", counts.breaks)?;
    writeln!(
        out,
        "  {:<16} {:>12}  {:>9}  after store {}, tables {}, mappings {}",
        "general_profit",
        domain.general_profit,
        human_signed_bytes(domain.general_profit),
        human_bytes(domain.store_bytes),
        human_bytes(domain.metadata_bytes),
        human_bytes(domain.mappings_bytes),
    )?;
    let guest_cpu_s = counts.guest_cpu_time_us as f64 / 1e6;
    writeln!(out, "  {:<16} {guest_cpu_s:>12.3}  seconds in guests' processes", "guest_cpu")
}

fn write_state(out: &mut dyn Write, label: &str, state: &State) -> io::Result<()> {
    match &state.advice {
        Some(advice) => writeln!(out, "{label}: {}: {advice}", state.name),
        None => writeln!(out, "{label}: {}", state.name),
    }
}
