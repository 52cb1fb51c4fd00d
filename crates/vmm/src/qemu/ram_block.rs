//! Reads QEMU's table of memory blocks, which QMP gives as text for people only.

use bindery_units::HostAddress;
use serde_json::json;

use crate::qmp::Qmp;
use crate::{MemoryBlock, VmmError};

const COMMAND: &str = "info ramblock";

/// Returns all memory blocks, in QEMU's order.
pub(super) fn all(qmp: &mut Qmp) -> Result<Vec<MemoryBlock>, VmmError> {
    let table = qmp.execute("human-monitor-command", json!({ "command-line": COMMAND }))?;
    let blocks = table.as_str().and_then(read);
    blocks.ok_or(VmmError::Answer { command: COMMAND, missing: "table of memory blocks" })
}

/// Reads the answer to `info ramblock`. Since QEMU 9 it has addresses. `None` if it is no such table.
///
/// ```text
///   Block Name    PSize              Offset               Used              Total                HVA  RO
///       pc.ram    4 KiB  0x0000000000000000 0x0000000040000000 0x0000000040000000 0x00007f676fe00000  rw
/// ```
fn read(table: &str) -> Option<Vec<MemoryBlock>> {
    let mut lines = table.lines().filter(|line| !line.trim().is_empty());
    let heads: Vec<_> = lines.next()?.split_whitespace().collect();
    // Its number of columns behind the name, which may be empty or have spaces; a size is two words.
    let columns = match &heads[..] {
        ["Block", "Name", "PSize", "Offset", "Used", "Total"] => 5,
        ["Block", "Name", "PSize", "Offset", "Used", "Total", "HVA", "RO"] => 7,
        _ => return None,
    };
    lines.map(|line| row(line, columns)).collect()
}

fn row(line: &str, columns: usize) -> Option<MemoryBlock> {
    let words: Vec<_> = line.split_whitespace().collect();
    let (name, columns) = words.split_at_checked(words.len().checked_sub(columns)?)?;
    let host_address = match columns.get(5) {
        Some(word) => Some(HostAddress(usize::try_from(hexadecimal(word)?).ok()?)),
        None => None,
    };
    let (bytes, total_bytes) = (hexadecimal(columns.get(3)?)?, hexadecimal(columns.get(4)?)?);
    (bytes <= total_bytes).then(|| MemoryBlock {
        name: name.join(" "),
        bytes,
        total_bytes,
        host_address,
    })
}

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: &str = "\
              Block Name    PSize              Offset               Used              Total\r
                  pc.ram    4 KiB  0x0000000000100000 0x0000000004000000 0x0000000004000000\r
                            4 KiB  0x0000000000000000 0x0000000000100000 0x0000000000100000\r
    /rom@etc/acpi/tables    4 KiB  0x0000000004180000 0x0000000000020000 0x0000000000200000\r\n";

    const NEW: &str = "\
    Block Name    PSize              Offset               Used              Total                HVA  RO
        pc.ram    2 MiB  0x0000000000000000 0x0000000004000000 0x0000000004000000 0x00007f676fe00000  rw
      a block     4 KiB  0x0000000004100000 0x0000000000040000 0x0000000000040000 0x00007f677ac00000  ro
";

    fn block(name: &str, bytes: u64, address: Option<usize>) -> MemoryBlock {
        let (name, host_address) = (name.to_owned(), address.map(HostAddress));
        MemoryBlock { name, bytes, total_bytes: bytes, host_address }
    }

    #[test]
    fn tables_with_and_without_addresses_are_read() {
        let old = [("pc.ram", 64 << 20), ("", 1 << 20), ("/rom@etc/acpi/tables", 128 << 10)];
        let mut old = old.map(|(name, bytes)| block(name, bytes, None));
        old[2].total_bytes = 2 << 20;
        assert_eq!(read(OLD).unwrap(), old);
        let new = [
            block("pc.ram", 64 << 20, Some(0x7f67_6fe0_0000)),
            block("a block", 256 << 10, Some(0x7f67_7ac0_0000)),
        ];
        assert_eq!(read(NEW).unwrap(), new);
    }

    #[test]
    fn another_table_is_not_guessed_at() {
        assert_eq!(read(""), None);
        assert_eq!(read("unknown command: 'info ramblock'"), None);
        assert_eq!(read(&NEW.replace("Used", "Free")), None);
        assert_eq!(read(&NEW.replace("0x0000000000040000", "x")), None);
        // More in use than there is.
        assert_eq!(read(&NEW.replacen("0x0000000004000000", "0x0000000004001000", 1)), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_a_panic(lines in prop::collection::vec("[ 0-9a-zx]{0,60}", 0..5)) {
            let (head, _) = NEW.split_once('\n').unwrap();
            let _ = read(&format!("{head}\n{}", lines.join("\n")));
        }
    }
}
