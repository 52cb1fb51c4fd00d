//! Writes initramfs archives in the "newc" format that Linux unpacks at boot
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! The archive is deterministic: same entries, same bytes. Two guests booted from it hold the same
//! file pages, which is what the benchmarks are about.

use std::io::{self, Write};

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive being written.
pub(crate) struct Archive<W: Write> {
    out: W,
    written: usize,
    next_inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, written: 0, next_inode: 1 }
    }

    pub(crate) fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.entry(path, DIRECTORY | mode, (0, 0), &[])
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, REGULAR | mode, (0, 0), content)
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    /// A device node; the kernel opens `/dev/console` for init before anything is mounted.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Writes the closing entry and returns the writer.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.next_inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "file over 4 GiB in cpio"))?;
        let fields = [
            self.next_inode,
            mode,
            0, // uid
            0, // gid
            1, // links
            0, // modification time: fixed, for the sake of equal archives
            size,
            0, // device of the archive's file system
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0, // checksum, unused by this flavour
        ];
        self.next_inode += 1;
        let mut header = String::from("070701");
        for field in fields {
            use std::fmt::Write as _;
            write!(header, "{field:08X}").map_err(io::Error::other)?;
        }
        self.put(header.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.align()?;
        self.put(content)?;
        self.align()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn align(&mut self) -> io::Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    /// Reads the archive back by the format's own text, not by the writer's code.
    fn list(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let text = std::str::from_utf8(&bytes[6 + index * 8..14 + index * 8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
            let data = (110 + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[data..data + size].to_vec()));
            bytes = &bytes[(data + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn reads_back_what_was_written() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("etc", 0o755).unwrap();
        for length in 0..9 {
            archive
                .file(&format!("etc/{}", "x".repeat(length + 1)), 0o644, &vec![7; length])
                .unwrap();
        }
        archive.symlink("bin", "usr/bin").unwrap();
        let entries = list(&archive.finish().unwrap());
        assert_eq!(entries.len(), 11);
        assert_eq!(entries[0].1, 0o040_755);
        for length in 0..9 {
            assert_eq!(entries[1 + length].2, vec![7; length]);
        }
        assert_eq!(entries[10], ("bin".to_owned(), 0o120_777, b"usr/bin".to_vec()));
    }
}
