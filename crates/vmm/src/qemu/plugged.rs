//! Devices that were plugged in while the guest ran: its command line does not name them.
//!
//! A QEMU that is restored has the devices of its command line. So memory that was plugged in is described by the
//! options that would have begun with it, at the address and in the slot that it has; any other device is an obstacle.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::answer::{Field, property};
use crate::qmp::Qmp;
use crate::{Obstacle, VmmError};

const DEVICES: &str = "query-memory-devices";

const BACKENDS: &str = "query-memdev";

/// Places in QEMU's tree of the devices that users named, and of those that they did not.
const PERIPHERALS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// Backend of which a restored QEMU can have another.
const PRIVATE_BACKEND: &str = "memory-backend-ram";

/// Devices that were plugged in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plugged {
    /// Words of a command line that has them.
    pub(super) words: Vec<String>,
    pub(super) obstacles: Vec<Obstacle>,
}

/// Finds what was plugged in while the guest ran.
pub(super) fn find(qmp: &mut Qmp) -> Result<Plugged, VmmError> {
    let mut plugged = Plugged::default();
    let devices = qmp.execute(DEVICES, json!({}))?;
    let memory: HashMap<&str, &Value> = devices
        .list(DEVICES)?
        .iter()
        .filter_map(|device| device.get("data"))
        .filter_map(|data| Some((data.get("id")?.as_str()?, data)))
        .collect();
    let mut backends = None;
    for place in PERIPHERALS {
        for (name, class) in children(qmp, place)? {
            let path = format!("{place}/{name}");
            if !is_plugged(qmp, &path)? {
                continue;
            }
            let module = memory.get(&*name).filter(|_| class == "pc-dimm");
            let words = match module {
                Some(module) => {
                    if backends.is_none() {
                        backends = Some(qmp.execute(BACKENDS, json!({}))?);
                    }
                    memory_words(qmp, module, backends.as_ref().unwrap_or(&Value::Null))?
                }
                None => None,
            };
            match words {
                Some(words) => plugged.words.extend(words),
                None => plugged.obstacles.push(of_device(&name, &class)),
            }
        }
    }
    Ok(plugged)
}

/// Returns name and class of each device at a place of the tree.
fn children(qmp: &mut Qmp, place: &str) -> Result<Vec<(String, String)>, VmmError> {
    let all = qmp.execute("qom-list", json!({ "path": place }))?;
    let child = |entry: &Value| {
        let class = entry.get("type")?.as_str()?.strip_prefix("child<")?.strip_suffix('>')?;
        Some((entry.get("name")?.as_str()?.to_owned(), class.to_owned()))
    };
    Ok(all.list("qom-list")?.iter().filter_map(child).collect())
}

fn is_plugged(qmp: &mut Qmp, path: &str) -> Result<bool, VmmError> {
    let answer = qmp.execute("qom-get", json!({ "path": path, "property": "hotplugged" }))?;
    Ok(answer.as_bool() == Some(true))
}

/// Returns the options of a memory module and of its backend. `None` for a backend that another QEMU would share.
fn memory_words(
    qmp: &mut Qmp,
    module: &Value,
    backends: &Value,
) -> Result<Option<[String; 4]>, VmmError> {
    let path = module.text(DEVICES, "memdev")?;
    let class = property(qmp, path, "type")?;
    let id = path.rsplit('/').next().unwrap_or_default();
    let all = backends.list(BACKENDS)?;
    let backend = all.iter().find(|backend| backend.get("id").and_then(Value::as_str) == Some(id));
    Ok(backend.filter(|_| class == PRIVATE_BACKEND).and_then(|backend| words(module, id, backend)))
}

/// Makes the options of a memory module. `None` where QEMU's answers lack something.
fn words(module: &Value, id: &str, backend: &Value) -> Option<[String; 4]> {
    let number = |of: &Value, name: &str| of.get(name).and_then(Value::as_u64);
    let mut object = format!("{PRIVATE_BACKEND},id={id},size={}", number(backend, "size")?);
    let flag = |name: &str| backend.get(name).and_then(Value::as_bool);
    if flag("share") == Some(true) {
        return None;
    }
    for name in ["merge", "dump", "prealloc"] {
        if let Some(value) = flag(name) {
            object += &format!(",{name}={}", if value { "on" } else { "off" });
        }
    }
    let nodes = backend.get("host-nodes").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for node in nodes.iter().filter_map(Value::as_u64) {
        object += &format!(",host-nodes={node}");
    }
    if let Some(policy) =
        backend.get("policy").and_then(Value::as_str).filter(|_| !nodes.is_empty())
    {
        object += &format!(",policy={policy}");
    }
    let name = module.get("id")?.as_str()?;
    let device = format!(
        "pc-dimm,id={name},memdev={id},addr={:#x},slot={},node={}",
        number(module, "addr")?,
        number(module, "slot")?,
        number(module, "node")?
    );
    Some(["-object".to_owned(), object, "-device".to_owned(), device])
}

fn of_device(name: &str, class: &str) -> Obstacle {
    Obstacle::new(
        format!(
            "device {name} ({class}) was plugged in while the guest ran, and a restored QEMU would lack it"
        ),
        "unplug it, or start the guest with it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module() -> Value {
        json!({ "id": "dimm1", "memdev": "/objects/more", "hotplugged": true, "addr": 0x1_0000_0000_u64,
                "slot": 0, "node": 0, "size": 1 << 27, "hotpluggable": true })
    }

    fn options(backend: &Value) -> Option<String> {
        Some(words(&module(), "more", backend)?.join(" "))
    }

    #[test]
    fn memory_is_described_as_a_command_line_has_it() {
        let backend = json!({ "id": "more", "size": 1 << 27, "merge": true, "dump": true,
                              "prealloc": false, "host-nodes": [], "policy": "default" });
        let expected = "-object memory-backend-ram,id=more,size=134217728,merge=on,dump=on,prealloc=off \
                        -device pc-dimm,id=dimm1,memdev=more,addr=0x100000000,slot=0,node=0";
        assert_eq!(options(&backend).unwrap(), expected);
    }

    #[test]
    fn nodes_of_the_host_are_kept() {
        let backend = json!({ "size": 1 << 27, "host-nodes": [0, 2], "policy": "bind" });
        let options = options(&backend).unwrap();
        assert!(options.contains(",host-nodes=0,host-nodes=2,policy=bind "), "{options}");
    }

    #[test]
    fn memory_that_is_shared_has_no_options() {
        assert_eq!(options(&json!({ "size": 1 << 27, "share": true })), None);
        assert_eq!(options(&json!({ "share": false })), None);
    }
}
