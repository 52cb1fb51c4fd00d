//! Mappings and CPU time that merging uses of a guest's process, by the gauges that come with answers.

use bindery_guest::Gauges;

/// Gauges of one guest's process, as of its last answer.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    mappings: u32,
    /// Fewest mappings that it was ever seen with.
    mappings_min: Option<u32>,
    mappings_max: u32,
    /// Longest time in this period that a page was held in transit.
    transit_max_ns: u64,
    lane_cpu_ns: u64,
    handler_cpu_ns: u64,
    /// Merges were left out for want of mappings.
    pub(crate) is_short_of_mappings: bool,
}

impl Usage {
    /// Starts the next period.
    pub(crate) fn begin_period(&mut self) {
        self.transit_max_ns = 0;
    }

    /// Takes in what the answers since the last call said. Returns the CPU time of the lane's thread
    /// in them, in nanoseconds.
    pub(crate) fn note_gauges(&mut self, gauges: &Gauges) -> u64 {
        if gauges.mappings_max > 0 {
            self.mappings = gauges.mappings;
            self.mappings_max = gauges.mappings_max;
            let least = self.mappings_min.unwrap_or(u32::MAX);
            self.mappings_min = Some(least.min(gauges.mappings));
        }
        self.transit_max_ns = self.transit_max_ns.max(gauges.transit_max_ns);
        self.lane_cpu_ns += gauges.lane_cpu_ns;
        self.handler_cpu_ns = self.handler_cpu_ns.max(gauges.handler_cpu_ns);
        gauges.lane_cpu_ns
    }

    /// Returns how many mappings the process has.
    pub(crate) const fn mappings(&self) -> u32 {
        self.mappings
    }

    /// Returns how many mappings the process may have.
    pub(crate) const fn mappings_max(&self) -> u32 {
        self.mappings_max
    }

    /// Returns how many more mappings it may make.
    pub(crate) const fn mappings_left(&self) -> u32 {
        self.mappings_max.saturating_sub(self.mappings)
    }

    /// Returns how many mappings merging has cost its process: those above the fewest it was ever seen with.
    pub(crate) fn merge_mappings(&self) -> u32 {
        self.mappings - self.mappings_min.unwrap_or(self.mappings)
    }

    /// Returns the longest time in this period that a page was held in transit, in microseconds.
    pub(crate) const fn transit_max_us(&self) -> u64 {
        self.transit_max_ns / 1000
    }

    /// Returns the CPU time of the guest's threads that worked for the engine, in microseconds.
    pub(crate) const fn cpu_time_us(&self) -> u64 {
        (self.lane_cpu_ns + self.handler_cpu_ns) / 1000
    }
}
