//! `/metrics`: the daemon's figures in Prometheus' text format, version 0.0.4.
//!
//! Names are `bindery_` and the figure's own, in which what is KSM's keeps KSM's name; units are
//! Prometheus' base units; sums that only grow end in `_total`. States are gauges: one for each state
//! there is, 1 for that which holds.

mod kept;

use std::collections::{BTreeMap, BTreeSet};

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{TEXT_FORMAT, TextEncoder};

use super::Pulse;
use super::history::target_us;
use crate::keeper::board::{KeptFigures, KeptGuest};
use crate::report::{DAEMON_STATES, DOMAIN_STATES, GUEST_STATES};
use crate::status::{Counts, DomainStatus, GuestStatus, HostStatus, PhaseStatus};

/// What is answered is of this type.
pub(super) const MEDIA_TYPE: &str = TEXT_FORMAT;

/// One figure of a `T`.
struct Figure<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    value: fn(&T) -> f64,
}

const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Figure<T> {
    Figure { name, help, kind: MetricType::GAUGE, value }
}

const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Figure<T> {
    Figure { name, help, kind: MetricType::COUNTER, value }
}

const HOST: &[Figure<HostStatus>] = &[
    gauge("uptime_seconds", "Time since the daemon began.", |host| host.uptime_s as f64),
    gauge("workers", "Workers that merge.", |host| f64::from(host.settings.workers)),
    gauge("period_seconds", "Length of a merge period.", |host| milli(host.settings.period_ms)),
    counter("daemon_cpu_seconds_total", "CPU time of the daemon's process.", |host| {
        milli(host.cpu_ms)
    }),
    counter(
        "paced_cpu_seconds_total",
        "CPU time of what the advisor's ceiling holds for.",
        |host| micro(host.merge_cpu_us),
    ),
    gauge("pages_to_scan", "Pages of a batch, between two rests; 0: as fast as it goes.", |host| {
        host.advisor.pages_to_scan.unwrap_or(0) as f64
    }),
    gauge("rest_seconds", "The rest after a batch; 0: none.", |host| micro(host.advisor.rest_us)),
    counter("scans_total", "Scans completed.", |host| host.advisor.scans as f64),
    gauge("scan_time_seconds", "How long the last scan took.", |host| {
        micro(host.advisor.scan_time_us)
    }),
    gauge("scan_pages", "Pages that the last scan looked at.", |host| {
        host.advisor.scan_pages as f64
    }),
    gauge("scan_cpu_ratio", "CPU time of the last scan, of one CPU.", |host| {
        percent(host.advisor.scan_cpu_percent)
    }),
    gauge(
        "advisor_target_scan_time_seconds",
        "How long a scan may take; 0: as it comes.",
        |host| micro(target_us(host).unwrap_or(0)),
    ),
    gauge("advisor_max_cpu_ratio", "The advisor's ceiling, of one CPU.", |host| {
        percent(host.settings.advisor.max_cpu_percent)
    }),
    gauge("daemon_resident_bytes", "Resident memory of the daemon, stores excluded.", |host| {
        host.resident_bytes as f64
    }),
];

const PULSE: &[Figure<Pulse>] = &[
    counter("full_scans_total", "Periods completed.", |pulse| pulse.full_scans as f64),
    gauge("period_time_seconds", "How long the last period took, rests included.", |pulse| {
        micro(pulse.period_time_us)
    }),
];

const PHASE: &[Figure<PhaseStatus>] = &[
    counter("phase_runs_total", "Times that the phase of merging ran.", |phase| phase.runs as f64),
    counter("phase_tasks_total", "Tasks that it was divided into.", |phase| phase.tasks as f64),
    counter("phase_time_seconds_total", "Time from its beginning to its end.", |phase| {
        micro(phase.time_us)
    }),
    counter("phase_work_seconds_total", "Time of its tasks together.", |phase| {
        micro(phase.work_us)
    }),
    counter("phase_longest_seconds_total", "Time of the longest task of each run.", |phase| {
        micro(phase.longest_us)
    }),
];

const DOMAIN: &[Figure<DomainStatus>] = &[
    gauge("guests", "Guests of the domain.", |domain| f64::from(domain.guests)),
    gauge("pages_shared", "Canonical pages in use.", |domain| domain.pages_shared as f64),
    gauge(
        "pages_sharing",
        "Pages saved: those mapping a canonical page, beyond one each.",
        |domain| domain.pages_sharing as f64,
    ),
    gauge("general_profit_bytes", "Memory saved after all metadata; may be negative.", |domain| {
        domain.general_profit as f64
    }),
    gauge("store_bytes", "Memory of the canonical store.", |domain| domain.store_bytes as f64),
    gauge("metadata_bytes", "Index and tables.", |domain| domain.metadata_bytes as f64),
    gauge("mappings_bytes", "Kernel memory for mappings of merged pages, estimated.", |domain| {
        domain.mappings_bytes as f64
    }),
];

/// Of domains, and under a longer name of guests.
const COUNTS: &[Figure<Counts>] = &[
    gauge("pages_managed", "Pages managed.", |counts| counts.pages_managed as f64),
    gauge("pages_merged", "Pages that map a canonical page.", |counts| counts.pages_merged as f64),
    gauge("zero_pages", "Pages that merging made the kernel's zero page.", |counts| {
        counts.zero_pages as f64
    }),
    gauge("pages_unshared", "Pages looked at and found unique.", |counts| {
        counts.pages_unshared as f64
    }),
    gauge("pages_volatile", "Pages that change too often, or changed too lately.", |counts| {
        counts.pages_volatile as f64
    }),
    gauge("pages_pending", "Stable pages that wait to be looked at.", |counts| {
        counts.pages_pending as f64
    }),
    gauge("pages_foreign", "Pages merged with the store of a daemon that ended.", |counts| {
        counts.pages_foreign as f64
    }),
    counter("pages_scanned_total", "Pages scanned for writes.", |counts| {
        counts.pages_scanned as f64
    }),
    counter("pages_digested_total", "Pages digested.", |counts| counts.pages_digested as f64),
    counter("breaks_total", "Writes to merged pages.", |counts| counts.breaks as f64),
    counter("discards_total", "Merged pages that were discarded.", |counts| counts.discards as f64),
    counter("digest_different_total", "Pages that proved different when merged.", |counts| {
        counts.digest_different as f64
    }),
    counter("pages_busy_total", "Pages that could not be moved at the time.", |counts| {
        counts.pages_busy as f64
    }),
    counter("pages_never_total", "Pages that will never be merged.", |counts| {
        counts.pages_never as f64
    }),
    gauge("huge_pages", "Huge pages, of 2 MiB, that are left whole.", |counts| {
        counts.huge_pages as f64
    }),
    gauge(
        "huge_pages_split",
        "Huge pages that are split for their pages to be merged.",
        |counts| counts.huge_pages_split as f64,
    ),
    counter("huge_splits_total", "Huge pages split.", |counts| counts.huge_splits as f64),
    counter(
        "huge_kept_hot_total",
        "Huge pages worth splitting, kept for their writes.",
        |counts| counts.huge_kept_hot as f64,
    ),
    counter("collapses_thin_total", "Huge pages made again: too little was merged.", |counts| {
        counts.collapses_thin as f64
    }),
    counter("collapses_hot_total", "Huge pages made again: too much was written.", |counts| {
        counts.collapses_hot as f64
    }),
    counter("collapses_empty_total", "Huge pages that became holes: all was zero.", |counts| {
        counts.collapses_empty as f64
    }),
    counter("merge_cpu_seconds_total", "CPU time for merging in guests' processes.", |counts| {
        micro(counts.guest_cpu_time_us)
    }),
];

const GUEST: &[Figure<GuestStatus>] = &[
    gauge("guest_ram_bytes", "Managed memory.", |guest| guest.ram_bytes as f64),
    gauge("guest_private_bytes", "Managed memory that is private and there, at most.", |guest| {
        guest.private_bytes as f64
    }),
    gauge("guest_merged_bytes", "Managed memory that maps canonical pages.", |guest| {
        guest.merged_bytes as f64
    }),
    gauge("guest_zero_bytes", "Managed memory that is the kernel's zero page.", |guest| {
        guest.zero_bytes as f64
    }),
    gauge("guest_mappings", "Mappings of the guest's process.", |guest| f64::from(guest.mappings)),
    gauge("guest_mappings_max", "Mappings at which merging stops.", |guest| {
        f64::from(guest.mappings_max)
    }),
    gauge(
        "guest_transit_max_seconds",
        "The longest that a thread can have waited for a page.",
        |guest| micro(guest.transit_max_us),
    ),
    gauge("guest_metadata_bytes", "Memory that the daemon holds for the guest.", |guest| {
        guest.metadata_bytes as f64
    }),
];

fn milli(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn micro(us: u64) -> f64 {
    us as f64 / 1e6
}

fn percent(of_one: u64) -> f64 {
    of_one as f64 / 100.0
}

/// Labels of a metric, by name.
type Labels = Vec<(&'static str, String)>;

/// All metrics, as text.
pub(super) fn encode(
    (host, guests): (&HostStatus, &[GuestStatus]),
    kept: &BTreeMap<KeptGuest, KeptFigures>,
    pulse: Pulse,
    requests: &[(u16, u64)],
) -> String {
    let mut page = Page::default();
    let build = vec![("version", host.program_version.clone())];
    page.add("build_info", "The daemon's program.", MetricType::GAUGE, [(build, 1.0)]);
    page.figures("", HOST, &[(Labels::new(), host)]);
    page.figures("", PULSE, &[(Labels::new(), &pulse)]);
    let label = |phase: &PhaseStatus| vec![("phase", phase.name.clone())];
    let phases = host.phases.iter().map(|phase| (label(phase), phase));
    page.figures("", PHASE, &phases.collect::<Vec<_>>());
    page.states(
        "state",
        "How the daemon is.",
        &DAEMON_STATES,
        [(Labels::new(), &*host.state.name)],
    );
    let served =
        requests.iter().map(|(code, count)| (vec![("code", code.to_string())], *count as f64));
    page.add("http_requests_total", "Requests answered.", MetricType::COUNTER, served);
    page.domains(&host.domains);
    page.guests(guests);
    page.kept(kept);
    // Fails only for families without metrics, which are left out.
    TextEncoder::new().encode_to_string(&page.families).expect("all families have metrics")
}

#[derive(Default)]
struct Page {
    families: Vec<MetricFamily>,
}

impl Page {
    fn domains(&mut self, domains: &[DomainStatus]) {
        let labels = |domain: &DomainStatus| {
            let name = vec![("domain", domain.name.clone()), ("user", domain.uid.to_string())];
            let node = domain.node.map(|node| ("node", node.to_string()));
            name.into_iter().chain(node).collect::<Labels>()
        };
        let of = || domains.iter().map(|domain| (labels(domain), domain));
        self.figures("", DOMAIN, &of().collect::<Vec<_>>());
        let counts = of().map(|(labels, domain)| (labels, &domain.counts));
        self.figures("", COUNTS, &counts.collect::<Vec<_>>());
        let states = of().map(|(labels, domain)| (labels, &*domain.state.name));
        self.states("domain_state", "How merging goes in the domain.", &DOMAIN_STATES, states);
    }

    fn guests(&mut self, guests: &[GuestStatus]) {
        let labels = |guest: &GuestStatus| {
            let (name, domain) = (guest.name.clone(), guest.domain.clone());
            vec![("guest", name), ("domain", domain), ("user", guest.uid.to_string())]
        };
        let mut seen = BTreeSet::new();
        // A guest that lost its connection may still be listed beside another that has its name now.
        let (lost, here): (Vec<&GuestStatus>, Vec<&GuestStatus>) =
            guests.iter().partition(|guest| guest.state.name == "disconnected");
        let unique = here.into_iter().chain(lost).filter(|guest| seen.insert(&guest.name));
        let of: Vec<(Labels, &GuestStatus)> = unique.map(|guest| (labels(guest), guest)).collect();
        let info = of.iter().map(|(labels, guest)| {
            let mut labels = labels.clone();
            labels.push(("pid", guest.pid.to_string()));
            (labels, 1.0)
        });
        self.add("guest_info", "The guest's process.", MetricType::GAUGE, info);
        self.figures("", GUEST, &of);
        let counts: Vec<(Labels, &Counts)> =
            of.iter().map(|(labels, guest)| (labels.clone(), &guest.counts)).collect();
        self.figures("guest_", COUNTS, &counts);
        let states = of.iter().map(|(labels, guest)| (labels.clone(), &*guest.state.name));
        self.states("guest_state", "How merging goes for the guest.", &GUEST_STATES, states);
    }

    /// Each figure of all of these.
    fn figures<T>(&mut self, prefix: &str, figures: &[Figure<T>], of: &[(Labels, &T)]) {
        for Figure { name, help, kind, value } in figures {
            let values = of.iter().map(|(labels, item)| (labels.clone(), value(item)));
            self.add(&format!("{prefix}{name}"), help, *kind, values);
        }
    }

    /// For each state of each of these, whether it holds.
    fn states<'a>(
        &mut self,
        name: &str,
        help: &str,
        states: &[&str],
        of: impl IntoIterator<Item = (Labels, &'a str)>,
    ) {
        let all = of.into_iter().flat_map(|(labels, current)| {
            let holding = |state: &str| {
                let mut labels = labels.clone();
                labels.push(("state", state.to_owned()));
                (labels, f64::from(state == current))
            };
            states.iter().map(|state| holding(state)).collect::<Vec<_>>()
        });
        self.add(name, help, MetricType::GAUGE, all);
    }

    fn add(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let metrics: Vec<Metric> =
            values.into_iter().map(|(labels, value)| metric(kind, labels, value)).collect();
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(format!("bindery_{name}"));
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.families.push(family);
    }
}

fn metric(kind: MetricType, labels: Labels, value: f64) -> Metric {
    let pairs = labels.into_iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    });
    let mut metric = Metric::from_label(pairs.collect());
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}
