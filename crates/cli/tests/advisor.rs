//! `bindery advisor simulate`: both laws on simulated memory.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use common::{Ended, bindery, run};
use serde_json::Value;

fn simulate(arguments: &[&str]) -> Ended {
    let mut command = bindery(["advisor", "simulate"]);
    command.args(arguments);
    run(command)
}

fn verdicts<'a>(report: &'a Value, mode: &str) -> Vec<&'a Value> {
    report["runs"].as_array().unwrap().iter().filter(|run| run["mode"] == mode).collect()
}

#[test]
fn steady_keeps_what_it_promises_on_every_load() {
    let report = simulate(&["--json"]).json();
    let steady = verdicts(&report, "steady");
    assert_eq!(steady.len(), 5);
    for verdict in &steady {
        assert!(verdict["most_cpu_percent"].as_f64().unwrap() <= 70.0, "{}", verdict["scenario"]);
        assert_eq!(verdict["cpu_over_ceiling_s"], 0.0);
        assert!(!verdict["all_scans"].as_array().unwrap().is_empty());
    }
    assert!(steady[0]["scans_to_target"].as_u64().unwrap() <= 2, "{}", steady[0]["scenario"]);
    assert_eq!((&steady[3]["scenario"], &steady[3]["turns"]), (&"noise".into(), &0.into()));
    assert_eq!(verdicts(&report, "scan-time").len(), 5);
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let arguments = ["--scenario", "noise", "--target-scan-time", "30s", "--json", "--seed"];
    let with_seed = |seed| simulate(&[&arguments[..], &[seed]].concat()).json();
    assert_eq!(with_seed("3"), with_seed("3"));
    assert_ne!(with_seed("3")["runs"], with_seed("4")["runs"]);
}

#[test]
fn known_pages_bring_the_first_scan_to_the_target() {
    let report = simulate(&["--scenario", "step", "--mode", "steady", "--known-pages", "--json"]);
    assert!(report.json()["runs"][0]["near_percent"].as_f64().unwrap() > 80.0);
}

#[test]
fn the_picture_shows_both_laws_and_the_limits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("laws.png");
    let ended = simulate(&["--scenario", "step", "--png", path.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("scan-time") && ended.out.contains("steady"), "{}", ended.out);
    let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.color_type), (480, png::ColorType::Rgb));
    for (name, rgb) in
        [("steady", 0x1D_5F_C4_u32), ("scan-time", 0xE8_8A_1A), ("limits", 0xC0_2B_3A)]
    {
        let rgb = &rgb.to_be_bytes()[1..];
        let count = pixels.chunks_exact(3).filter(|pixel| *pixel == rgb).count();
        assert!(count > 100, "{name}: {count} pixels");
    }
}

#[test]
fn what_cannot_be_set_is_named_with_its_range() {
    let wrong: [(&[&str], &str); 6] = [
        (&["--max-cpu", "0"], "advisor_max_cpu is 1 to 25600"),
        (&["--min-pages", "0"], "advisor_min_pages_to_scan is 1 to"),
        (&["--min-pages", "9", "--max-pages", "8"], "lower the one or raise the other"),
        (&["--target-scan-time", "1500ms"], "whole seconds"),
        (&["--target-scan-time", "70m"], "at most 3600s"),
        (&["--scenario", "quake"], "sawtooth"),
    ];
    for (arguments, expected) in wrong {
        let ended = simulate(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.err.contains(expected), "{arguments:?}: {}", ended.err);
    }
    assert_eq!(simulate(&["--scenario", "step", "--png", "/none/laws.png"]).code, Some(4));
}
