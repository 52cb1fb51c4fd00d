//! The `vmgenid` device, by which a guest learns that it is not the one that was saved (VM Generation ID). Its driver
//! has Linux and Windows draw the state of random numbers anew.

use super::option_table::QemuOption;
use super::properties::Properties;

const DRIVER: &str = "vmgenid";

/// Value that has QEMU draw an id.
const AUTO: &str = "auto";

/// Makes a `-device vmgenid` draw an id of its own. Leaves other devices as they are.
pub(super) fn renew(option: &mut QemuOption) {
    let read = Properties::read(option.text(), "driver").filter(is_one);
    if let Some(mut read) = read {
        read.set("guid", AUTO);
        option.value = Some(read.write());
    }
}

/// Returns true if a command line gives its guest a `vmgenid` device.
#[must_use]
pub fn has_one<W: AsRef<[u8]>>(words: &[W]) -> bool {
    words.windows(2).any(|pair| {
        let is_device = matches!(pair[0].as_ref(), b"-device" | b"--device");
        let value = str::from_utf8(pair[1].as_ref()).ok();
        let read = value.filter(|_| is_device).and_then(|value| Properties::read(value, "driver"));
        read.as_ref().is_some_and(is_one)
    })
}

fn is_one(read: &Properties) -> bool {
    read.get("driver").is_some_and(|driver| driver == DRIVER)
}
