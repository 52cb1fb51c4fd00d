//! Benchmarks beside their rivals
