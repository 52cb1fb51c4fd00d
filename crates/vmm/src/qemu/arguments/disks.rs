//! Writable disks of a command line, which get overlays in place of their images.

use super::option_table::QemuOption;
use super::properties::Properties;
use super::{ArgumentError, DiskReplacement, refuse};

/// Options that name an image alone, and the `-drive` that says the same.
const IMAGES: [(&str, &str); 9] = [
    ("fda", "if=floppy,index=0"),
    ("fdb", "if=floppy,index=1"),
    ("hda", "index=0,media=disk"),
    ("hdb", "index=1,media=disk"),
    ("hdc", "index=2,media=disk"),
    ("hdd", "index=3,media=disk"),
    ("mtdblock", "if=mtd"),
    ("pflash", "if=pflash"),
    ("sd", "if=sd"),
];

/// Returns true if an option may name an image.
pub(super) fn is_disk(name: &str) -> bool {
    name == "drive" || IMAGES.iter().any(|(image, _)| *image == name)
}

/// Finds the replacement for any of these names.
fn find<'a>(disks: &'a [DiskReplacement], names: &[Option<String>]) -> Option<&'a DiskReplacement> {
    let is_named =
        |disk: &&DiskReplacement| names.iter().flatten().any(|name| disk.names.contains(name));
    disks.iter().find(is_named)
}

/// Returns a `-drive`, or an option that names an image, with the overlay in its place. One that is read-only, or
/// empty, stays as it is.
pub(super) fn of_drive(
    option: QemuOption,
    disks: &[DiskReplacement],
) -> Result<QemuOption, ArgumentError> {
    let image = IMAGES.iter().find(|(image, _)| *image == option.name);
    let mut drive = match image {
        Some((_, same)) => {
            let mut drive = Properties::read(same, "").expect("it is no JSON");
            drive.set("file", option.text());
            drive
        }
        None => {
            let read = Properties::read(option.text(), "");
            read.ok_or_else(|| refuse(&option, "it is no list of properties"))?
        }
    };
    if drive.is_on("snapshot") {
        return Err(refuse(&option, "writes are thrown away, and cannot be kept"));
    }
    let is_kept = drive.is_on("readonly")
        || drive.is_on("read-only")
        || drive.get("media").is_some_and(|media| media == "cdrom")
        || !(drive.has("file") || drive.has_any("file."));
    if is_kept {
        return Ok(option);
    }
    let names = ["id", "node-name", "file", "file.filename"].map(|key| drive.get(key));
    let disk = find(disks, &names).ok_or_else(|| no_overlay(&option))?;
    let driver = drive.get("driver").or_else(|| drive.get("format"));
    if driver.is_some_and(|driver| !is_format(&driver)) || drive.has_any("backing") {
        return Err(refuse(&option, "an image of this shape cannot be exchanged"));
    }
    ["file", "format", "driver"].iter().for_each(|key| drive.remove(key));
    drive.set("file", &disk.path);
    drive.set("format", &disk.format);
    Ok(QemuOption::new("drive", drive.write()))
}

fn no_overlay(option: &QemuOption) -> ArgumentError {
    ArgumentError::NoOverlay { option: option.name, value: option.text().to_owned() }
}

fn is_format(driver: &str) -> bool {
    matches!(driver, "raw" | "qcow2")
}

/// A `-blockdev`, and the option that it was read from.
struct Node {
    option: QemuOption,
    properties: Properties,
}

impl Node {
    fn name(&self) -> Option<String> {
        self.properties.get("node-name")
    }

    fn driver(&self) -> String {
        self.properties.get("driver").unwrap_or_default()
    }

    fn is_read_only(&self) -> bool {
        self.properties.is_on("read-only")
    }

    /// Returns true if it lies upon the node of that name.
    fn is_over(&self, name: &str) -> bool {
        self.properties.get("file").is_some_and(|file| file == name)
    }
}

/// Exchanges the images below all `-blockdev` of a command line, in place.
pub(super) fn of_blockdevs(
    options: &mut Vec<QemuOption>,
    disks: &[DiskReplacement],
) -> Result<(), ArgumentError> {
    let mut nodes = Vec::new();
    for option in options.iter().filter(|option| option.name == "blockdev") {
        let properties = Properties::read(option.text(), "driver");
        let properties = properties.ok_or_else(|| refuse(option, "it is no list of properties"))?;
        nodes.push(Node { option: option.clone(), properties });
    }
    let mut rewritten = Vec::new();
    for at in 0..nodes.len() {
        rewritten.push(rewrite_node(&nodes, at, disks)?);
    }
    let mut rewritten = rewritten.into_iter();
    *options = std::mem::take(options)
        .into_iter()
        .flat_map(|option| match option.name {
            "blockdev" => rewritten.next().expect("there is one for each"),
            _ => vec![option],
        })
        .collect();
    Ok(())
}

/// Returns what takes the place of a node.
fn rewrite_node(
    nodes: &[Node],
    at: usize,
    disks: &[DiskReplacement],
) -> Result<Vec<QemuOption>, ArgumentError> {
    let node = &nodes[at];
    let driver = node.driver();
    let keep = || Ok(vec![node.option.clone()]);
    if node.is_read_only() || is_backing(nodes, node) {
        return keep();
    }
    if is_format(&driver) {
        return of_format(nodes, node, disks);
    }
    if !matches!(&*driver, "file" | "host_device") {
        return Err(refuse(&node.option, "a writable disk of this driver cannot be exchanged"));
    }
    let name = node.name().unwrap_or_default();
    let above: Vec<&Node> = nodes.iter().filter(|above| above.is_over(&name)).collect();
    if !above.is_empty()
        && above.iter().all(|above| above.is_read_only() || is_backing(nodes, above))
    {
        return keep();
    }
    let mut names = vec![Some(name.clone()), node.properties.get("filename")];
    names.extend(above.iter().map(|above| above.name()));
    let disk = find(disks, &names).ok_or_else(|| no_overlay(&node.option))?;
    let mut file = node.properties.clone();
    file.set("driver", "file");
    file.set("filename", &disk.path);
    if !above.is_empty() {
        return Ok(vec![QemuOption::new("blockdev", file.write())]);
    }
    // A device uses the file itself: what it names becomes a format upon it.
    let below = format!("{name}-file");
    file.set("node-name", &below);
    let format = format!("driver={},node-name={name},file={below}", disk.format);
    Ok(vec![QemuOption::new("blockdev", file.write()), QemuOption::new("blockdev", format)])
}

/// Exchanges a format: the overlay names what lies below by itself.
fn of_format(
    nodes: &[Node],
    node: &Node,
    disks: &[DiskReplacement],
) -> Result<Vec<QemuOption>, ArgumentError> {
    let mut properties = node.properties.clone();
    if properties.has("offset") || properties.has("size") {
        return Err(refuse(&node.option, "a part of an image cannot be exchanged"));
    }
    let below = properties.get("file");
    let below =
        below.and_then(|name| nodes.iter().find(|node| node.name().as_ref() == Some(&name)));
    let mut names = vec![node.name(), properties.get("file.filename")];
    names.extend(below.map(|below| below.properties.get("filename")));
    names.extend(below.map(Node::name));
    let disk = find(disks, &names).ok_or_else(|| no_overlay(&node.option))?;
    properties.set("driver", &disk.format);
    properties.remove("backing");
    if below.is_none() {
        if !matches!(properties.get("file.driver").as_deref(), Some("file" | "host_device")) {
            return Err(refuse(&node.option, "what lies below it is not named with it"));
        }
        properties.set("file.driver", "file");
        properties.set("file.filename", &disk.path);
    }
    Ok(vec![QemuOption::new("blockdev", properties.write())])
}

/// Returns true if some node has it as its backing image, which nobody writes.
fn is_backing(nodes: &[Node], node: &Node) -> bool {
    let name = node.name();
    name.is_some() && nodes.iter().any(|above| above.properties.get("backing") == name)
}
