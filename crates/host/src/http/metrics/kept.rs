//! Metrics of guests that have checkpoints, or are filled from one.

use std::collections::BTreeMap;

use prometheus::proto::MetricType;

use super::{Figure, Labels, Page, counter, gauge, micro};
use crate::keeper::board::{KeptFigures, KeptGuest};

const KEPT: &[Figure<KeptFigures>] = &[
    gauge("guest_checkpoints", "Checkpoints of the guest.", |kept| kept.checkpoints as f64),
    gauge(
        "guest_checkpoint_own_bytes",
        "Pages of its checkpoints that no earlier one had.",
        |kept| kept.own_bytes as f64,
    ),
    gauge(
        "guest_checkpoint_shared_bytes",
        "Pages of its checkpoints that an earlier one had.",
        |kept| kept.shared_bytes as f64,
    ),
    counter("guest_checkpoint_failures_total", "Checkpoints that could not be made.", |kept| {
        kept.failures as f64
    }),
    counter("guest_restores_total", "Guests that went on from its checkpoints.", |kept| {
        kept.restores as f64
    }),
];

impl Page {
    /// Adds figures of guests that have checkpoints.
    pub(super) fn kept(&mut self, kept: &BTreeMap<KeptGuest, KeptFigures>) {
        let labels = |of: &KeptGuest| {
            let user = of.uid.map_or_else(String::new, |uid| uid.to_string());
            vec![("guest", of.guest.clone()), ("domain", of.domain.clone()), ("user", user)]
        };
        let of: Vec<(Labels, &KeptFigures)> =
            kept.iter().map(|(guest, figures)| (labels(guest), figures)).collect();
        self.figures("", KEPT, &of);
        let with = |value: fn(&KeptFigures) -> Option<f64>| {
            of.iter().filter_map(move |(labels, figures)| Some((labels.clone(), value(figures)?)))
        };
        let last =
            |figures: &KeptFigures| (figures.last_ns > 0).then_some(figures.last_ns as f64 / 1e9);
        let pause = |figures: &KeptFigures| figures.last_pause_us.map(micro);
        let missing = |figures: &KeptFigures| figures.missing_pages.map(|pages| pages as f64);
        let kind = MetricType::GAUGE;
        let help = "Time of the guest's last checkpoint, since 1970.";
        self.add("guest_checkpoint_timestamp_seconds", help, kind, with(last));
        let help = "Pause of the guest's last checkpoint, from STOP to RESUME.";
        self.add("guest_checkpoint_pause_seconds", help, kind, with(pause));
        let help = "Pages that a guest lacks still that is filled from a checkpoint.";
        self.add("guest_missing_pages", help, kind, with(missing));
    }
}
