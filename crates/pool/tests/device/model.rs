//! A device does what an array does.

use bindery_pool::BLOCK_BYTES;
use bindery_pool::device::{Device, DeviceOptions, FileDevice, Read, Write};
use bindery_sys::direct::Buffer;
use proptest::prelude::*;

use super::{all_options, create, offset, pattern};

const BLOCKS: u64 = 48;

#[derive(Clone, Debug)]
enum Step {
    /// Disjoint ranges of one batch: writes that overlap have no order.
    Write(Vec<(u64, usize)>),
    Read(Vec<(u64, usize)>),
    Discard(u64, usize),
    Grow(u64),
    Sync,
    Reopen,
}

/// Where a version of each block was written; none where it reads as anything.
type Model = Vec<Option<u64>>;

fn step() -> impl Strategy<Value = Step> {
    let ranges = || prop::collection::vec((0..BLOCKS, 1..6usize), 0..30);
    prop_oneof![
        4 => ranges().prop_map(Step::Write),
        4 => ranges().prop_map(Step::Read),
        1 => (0..BLOCKS, 1..9usize).prop_map(|(block, blocks)| Step::Discard(block, blocks)),
        1 => (0..BLOCKS).prop_map(Step::Grow),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

fn clipped(ranges: &[(u64, usize)], length: u64) -> Vec<(u64, usize)> {
    let inside = ranges.iter().filter(|(block, _)| *block < length);
    inside.map(|&(block, blocks)| (block, blocks.min((length - block) as usize))).collect()
}

fn disjoint(ranges: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
    let mut taken = vec![false; BLOCKS as usize];
    let mut keep = ranges;
    keep.retain(|&(block, blocks)| {
        let range = &mut taken[block as usize..][..blocks];
        let is_free = !range.contains(&true);
        if is_free {
            range.fill(true);
        }
        is_free
    });
    keep
}

fn write(device: &FileDevice, model: &mut Model, ranges: &[(u64, usize)], version: u64) {
    let ranges = disjoint(clipped(ranges, model.len() as u64));
    let buffers: Vec<Buffer> =
        ranges.iter().map(|&(block, blocks)| pattern(block, blocks, version)).collect();
    let writes: Vec<Write<'_>> = ranges
        .iter()
        .zip(&buffers)
        .map(|(&(block, _), from)| Write { offset_bytes: offset(block), from })
        .collect();
    device.write_many(&writes).unwrap();
    for (block, blocks) in ranges {
        model[block as usize..][..blocks].fill(Some(version));
    }
}

fn read(device: &FileDevice, model: &Model, ranges: &[(u64, usize)]) {
    let ranges = clipped(ranges, model.len() as u64);
    let mut buffers: Vec<Buffer> =
        ranges.iter().map(|&(_, blocks)| Buffer::zeroed(blocks * BLOCK_BYTES)).collect();
    let mut reads: Vec<Read<'_>> = ranges
        .iter()
        .zip(&mut buffers)
        .map(|(&(block, _), into)| Read { offset_bytes: offset(block), into })
        .collect();
    device.read_many(&mut reads).unwrap();
    for (&(block, _), found) in ranges.iter().zip(&buffers) {
        for (at, found) in found.chunks_exact(BLOCK_BYTES).enumerate() {
            let block = block + at as u64;
            if let Some(version) = model[block as usize] {
                assert!(found == &*pattern(block, 1, version), "block {block}");
            }
        }
    }
}

fn follow(steps: &[Step], options: &DeviceOptions) {
    let directory = tempfile::tempdir().unwrap();
    let mut device = create(directory.path(), BLOCKS / 2, options);
    let mut model: Model = vec![None; BLOCKS as usize / 2];
    for (version, step) in steps.iter().enumerate() {
        match step {
            Step::Write(ranges) => write(&device, &mut model, ranges, version as u64),
            Step::Read(ranges) => read(&device, &model, ranges),
            &Step::Discard(block, blocks) => {
                for (block, blocks) in clipped(&[(block, blocks)], model.len() as u64) {
                    device.discard(offset(block), offset(blocks as u64)).unwrap();
                    model[block as usize..][..blocks].fill(None);
                }
            }
            &Step::Grow(blocks) => {
                let length = blocks.max(model.len() as u64);
                assert_eq!(device.grow(offset(blocks)).unwrap(), offset(length));
                model.resize(length as usize, None);
            }
            Step::Sync => device.sync().unwrap(),
            Step::Reopen => {
                let path = device.path().to_owned();
                drop(device);
                device = FileDevice::open(&path, options).unwrap();
            }
        }
        assert_eq!(device.bytes(), offset(model.len() as u64));
    }
    read(&device, &model, &[(0, model.len())]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn a_device_does_what_an_array_does(steps in prop::collection::vec(step(), 1..40)) {
        for options in all_options() {
            follow(&steps, &options);
        }
    }
}
