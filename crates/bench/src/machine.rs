//! The machine that figures are of.

use std::fs;

use serde::Serialize;

/// Description of a machine: enough of it to compare figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model, as the kernel names it.
    pub processor: String,
    /// Number of CPUs that this process may use.
    pub cpus: usize,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Version of the benchmarks, which is the product's.
    pub bindery: &'static str,
}

impl Machine {
    /// Looks at the machine that this runs on. Empty or zero where the kernel does not say.
    #[must_use]
    pub fn look() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal");
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: memory_kib.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) >> 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            bindery: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Makes a name for a directory from the processor and the number of CPUs, as `amd-epyc-2cpu`.
    #[must_use]
    pub fn name(&self) -> String {
        let words = self.processor.to_lowercase();
        let words = words.split(|letter: char| !letter.is_ascii_alphanumeric());
        let mut name: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let cpus = format!("{}cpu", self.cpus);
        name.push(&cpus);
        name.join("-")
    }
}

/// The first value of a `name : value` line.
fn field(text: &str, name: &str) -> String {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = values.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    values.next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_directories() {
        let machine =
            Machine { processor: "AMD EPYC (Zen 4) @ 2.6GHz".into(), cpus: 2, ..Machine::look() };
        assert_eq!(machine.name(), "amd-epyc-zen-4-2-6ghz-2cpu");
        assert!(Machine::look().memory_mib > 0);
    }
}
