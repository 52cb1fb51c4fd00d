//! What is logged of guests that fail.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use bindery_guest::Connection;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::process::Line;
use super::scenes::Scene;
use crate::{MergeSettings, guest_of};

/// The reasons in the warnings of the thread that it is set for.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Visit for &Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "error" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_guest_that_fails_in_every_period_is_logged_once_for_each_reason() {
    let warnings = Warnings::default();
    // One worker is the thread that runs the period.
    let settings = MergeSettings { workers: 1, ..MergeSettings::default() };
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut scene = Scene::new(settings);
        let (one, _) = scene.guest("a", 100, |page| u64::from(page + 1));
        scene.periods(3);
        assert_eq!(*warnings.0.lock().unwrap(), [""; 0]);
        // Another request may be the one that is not answered, from period to period.
        for _ in 0..20 {
            one.process().fails_in = Some((0, Line::Stalled));
            scene.periods(1);
            one.set_line(Line::Open);
        }
        assert!(scene.engine.troubles().stands(guest_of(one.identity().pid)));
        let mut reasons = warnings.0.lock().unwrap().clone();
        let said = reasons.len();
        reasons.sort();
        reasons.dedup();
        assert!(said == reasons.len() && (1..4).contains(&said), "{said} lines: {reasons:?}");
    });
}
