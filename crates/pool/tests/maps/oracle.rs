//! Any list of objects, any order of doing things: every byte is what was written.

use std::sync::Arc;

use bindery_pool::map::{
    BackEndChoice, BackEndKind, Map, MapAccess, MapOptions, Maps, PageRun, Temperature,
};
use bindery_pool::object::Object;
use proptest::prelude::*;

use crate::support::{Bench, TestObject, bytes, purge};

#[derive(Clone, Debug)]
enum Step {
    Get { object: prop::sample::Index, from: u64, length: usize },
    Read { object: prop::sample::Index, from: u64, length: usize },
    Prefetch { object: prop::sample::Index, first_page: u64, pages: u64 },
    Purge,
    Temperature(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let object = any::<prop::sample::Index>;
    prop_oneof![
        (object(), 0u64..300_000, 0usize..50_000).prop_map(|(object, from, length)| Step::Get {
            object,
            from,
            length
        }),
        (object(), 0u64..300_000, 0usize..300_000).prop_map(|(object, from, length)| Step::Read {
            object,
            from,
            length
        }),
        (object(), 0u64..80, 0u64..80).prop_map(|(object, first_page, pages)| Step::Prefetch {
            object,
            first_page,
            pages
        }),
        Just(Step::Purge),
        (0usize..4).prop_map(Step::Temperature),
    ]
}

fn do_step(map: &Map, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Get { object, from, length } => {
            let at = object.index(map.len());
            let object = &map.objects()[at];
            match map.get(at, *from, *length) {
                Ok(view) => prop_assert_eq!(view.to_vec(), bytes(object.id(), *from, *length)),
                Err(_) => prop_assert!(*from + *length as u64 > object.length_bytes()),
            }
        }
        Step::Read { object, from, length } => {
            let at = object.index(map.len());
            let object = &map.objects()[at];
            let mut into = vec![0; *length];
            match map.read(at, *from, &mut into) {
                Ok(()) => prop_assert_eq!(into, bytes(object.id(), *from, *length)),
                Err(_) => prop_assert!(*from + *length as u64 > object.length_bytes()),
            }
        }
        Step::Prefetch { object, first_page, pages } => {
            let object = object.index(map.len());
            let run = PageRun { object, first_page: *first_page, pages: *pages };
            let done = map.prefetch(&[run]).unwrap().pages;
            let all = map.objects()[object].length_bytes().div_ceil(4096);
            prop_assert_eq!(done, all.saturating_sub(*first_page).min(*pages));
        }
        Step::Purge => purge(map),
        Step::Temperature(number) => {
            map.set_temperature(Temperature::ALL[*number]);
            prop_assert_eq!(map.temperature(), Temperature::ALL[*number]);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn every_byte_is_what_was_written(
        lengths in prop::collection::vec(0u64..300_000, 1..12),
        devices in 1usize..3,
        forwards in any::<bool>(),
        kind in prop::sample::select(vec![
            BackEndChoice::Automatic,
            BackEndChoice::Fixed(BackEndKind::Memfd),
        ]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let bench = Bench::new();
        let devices: Vec<_> = (0..devices).map(|at| bench.device(&at.to_string())).collect();
        let objects = lengths.iter().enumerate().map(|(at, length)| {
            // In the reverse order on the device, for the order is not to matter.
            let place = (lengths.len() - at) as u64 * 76 * 4096;
            let device = &devices[at % devices.len()];
            Arc::new(TestObject::new(at as u64, device, place, *length)) as Arc<dyn Object>
        });
        let objects: Vec<_> = objects.collect();
        devices.iter().for_each(|device| device.file.sync_all().unwrap());
        let access = if forwards { MapAccess::Sequential } else { MapAccess::Random };
        let options = MapOptions { choice: kind, access, ..MapOptions::default() };
        let map = Maps::default().map(&objects, Temperature::Warm, &options).unwrap();
        for step in &steps {
            do_step(&map, step)?;
        }
    }
}
