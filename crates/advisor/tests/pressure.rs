//! Memory counts as short at once, and as plentiful only after it was for a while.

use bindery_advisor::{Pressure, PressureMarks, Readings};
use proptest::prelude::*;

const PLENTY: Readings = Readings { available_percent: 80, stall: Some(0) };

fn readings() -> impl Strategy<Value = Readings> {
    (0..=100_u64, prop::option::of(0..1000_u64))
        .prop_map(|(available_percent, stall)| Readings { available_percent, stall })
}

#[test]
fn between_the_marks_it_stays_as_it_was() {
    let marks = PressureMarks::default();
    let mut pressure = Pressure::new(marks);
    let between = Readings { available_percent: 25, stall: Some(150) };
    assert!(!pressure.update(0, between));
    assert!(pressure.update(1, Readings { available_percent: 19, ..PLENTY }));
    assert!(pressure.update(2, between));
    assert!(pressure.update(500, between), "however long it is between the marks");
    assert!(pressure.update(600, PLENTY));
    assert!(pressure.update(659, PLENTY));
    assert!(!pressure.update(660, PLENTY));
    assert!(!pressure.update(700, between));
    assert!(
        pressure.update(701, Readings { stall: Some(501), ..PLENTY }),
        "stalls alone count too"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// Once it counts as short it does so until memory was plentiful for the whole hold time, without
    /// a break; so two changes to plenty are never closer than that.
    #[test]
    fn it_never_flaps(
        hold_s in 0..100_u64,
        steps in prop::collection::vec((0..30_u64, readings()), 1..200),
    ) {
        let marks = PressureMarks { hold_s, ..PressureMarks::default() };
        let mut pressure = Pressure::new(marks);
        let (mut now_s, mut was_short, mut plenty_since) = (0, false, None);
        for (later_s, readings) in steps {
            now_s += later_s;
            let stall = readings.stall.unwrap_or(0);
            let is_plenty = readings.available_percent >= marks.available_high_percent
                && stall <= marks.stall_low;
            let is_little = readings.available_percent < marks.available_low_percent
                || stall > marks.stall_high;
            plenty_since = if is_plenty { plenty_since.or(Some(now_s)) } else { None };
            let is_short = pressure.update(now_s, readings);
            prop_assert_eq!(is_short, pressure.is_short());
            let held = plenty_since.is_some_and(|since| now_s - since >= hold_s);
            prop_assert_eq!(is_short, is_little || (was_short && !held));
            was_short = is_short;
        }
    }

    #[test]
    fn no_input_has_it_panic(
        marks in any::<(u64, u64, u64, u64, u64)>(),
        steps in prop::collection::vec(any::<(u64, u64, Option<u64>)>(), 1..50),
    ) {
        let mut pressure = Pressure::new(PressureMarks {
            available_low_percent: marks.0,
            available_high_percent: marks.1,
            stall_high: marks.2,
            stall_low: marks.3,
            hold_s: marks.4,
        });
        for (now_s, available_percent, stall) in steps {
            pressure.update(now_s, Readings { available_percent, stall });
        }
    }
}
