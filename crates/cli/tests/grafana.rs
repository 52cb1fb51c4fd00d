//! The dashboard for Grafana: its sums are there even where some of what they add up is not.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::process::Command;

use bindery_testkit::guest::Kit;
use bindery_testkit::skipped;
use serde_json::{Value, json};

/// What the dashboard asks for, of all panels.
fn expressions() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/bindery.json");
    let text = std::fs::read_to_string(path).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Those that add something up.
fn sums() -> Vec<String> {
    let sums: Vec<String> =
        expressions().into_iter().filter(|expression| expression.contains(" + ")).collect();
    assert!(sums.len() >= 2, "CPU, and what needs attention: {sums:?}");
    sums
}

/// In PromQL a sum of which one side has no series is empty: a daemon without guests has no CPU time
/// in guests.
#[test]
fn a_sum_does_without_what_is_not_there() {
    for sum in sums() {
        let (sum, condition) = sum.rsplit_once(" and on() ").unwrap();
        assert!(condition.starts_with("bindery_state{"), "no daemon, no figure: {condition}");
        for operand in sum.split(" + ") {
            let is_whole = operand.starts_with("(sum(") && operand.ends_with(") or vector(0))");
            assert!(is_whole, "{operand}");
        }
    }
}

/// A daemon that has no guests and is short of resources, and uses a fifth of a CPU.
fn lonely_daemon() -> Value {
    let series = |name: &str, labels: &str, values: &str| json!({ "series": format!("{name}{{instance=\"a\"{labels}}}"), "values": values });
    json!([
        series("bindery_state", ",state=\"running\"", "0x40"),
        series("bindery_state", ",state=\"short-of-resources\"", "1x40"),
        series("bindery_daemon_cpu_seconds_total", "", "0+3x40"),
    ])
}

#[test]
fn prometheus_reckons_the_sums_of_a_daemon_without_guests() {
    let Some(promtool) = Kit::of_checkout().promtool() else {
        return skipped!("promtool is not there to try sums: run `cargo xtask setup`");
    };
    let mut tests = Vec::new();
    for sum in sums() {
        let sum = sum.replace("$__rate_interval", "1m").replace("$domain", ".*");
        let value = if sum.contains("cpu_seconds") { 0.2 } else { 1.0 };
        for (instance, samples) in [("a", json!([{ "value": value }])), ("gone", json!([]))] {
            let expression = sum.replace("$instance", instance);
            tests.push(json!({ "expr": expression, "eval_time": "5m", "exp_samples": samples }));
        }
    }
    let suite = json!({ "evaluation_interval": "15s", "tests": [{
        "interval": "15s", "input_series": lonely_daemon(), "promql_expr_test": tests,
    }] });
    let directory = tempfile::tempdir().unwrap();
    // JSON is YAML.
    let file = directory.path().join("sums.yml");
    std::fs::write(&file, suite.to_string()).unwrap();
    let output = Command::new(promtool).args(["test", "rules"]).arg(&file).output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{}", said.concat());
}
