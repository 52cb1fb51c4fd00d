//! Programs of the system that packages are made with.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// What is needed, and the Debian package that it comes in.
const TOOLS: [(&str, &str); 4] =
    [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils"), ("gzip", "gzip")];

/// Names all tools that are missing at once.
pub(super) fn check_tools() -> Result<()> {
    let missing: Vec<&str> =
        TOOLS.into_iter().filter(|(tool, _)| !is_there(tool)).map(|(_, package)| package).collect();
    if !missing.is_empty() {
        bail!("a Debian package cannot be made here: apt install {}", missing.join(" "));
    }
    Ok(())
}

fn is_there(tool: &str) -> bool {
    let mut command = Command::new(tool);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a tool; its words are shown where it fails.
pub(super) fn run_tool(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// What a tool prints, without the line's end.
pub(super) fn capture(command: &mut Command) -> Result<String> {
    let text = String::from_utf8(output(command)?.stdout);
    Ok(text.context("a tool printed no text")?.trim_end().to_owned())
}

/// What a tool prints.
pub(super) fn output(command: &mut Command) -> Result<Output> {
    let name = Path::new(command.get_program()).display().to_string();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} ended with {}: {said}", output.status);
    Ok(output)
}
