//! Python packages below the kit, for the host's `python3`.
//!
//! Debian's Python comes without pip and without the means to make a virtual environment; pip itself
//! is in a package of its own as a wheel, and a wheel runs from where it lies.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::{PrivateApt, run};

/// moto and all that it needs to behave as S3, each in the version that tests ran with.
pub(super) const MOTO_PACKAGES: [&str; 27] = [
    "blinker==1.9.0",
    "boto3==1.44.5",
    "botocore==1.44.5",
    "certifi==2026.10.18",
    "cffi==2.1.1",
    "charset_normalizer==3.5.2",
    "click==8.5.1",
    "cryptography==50.0.2",
    "flask==3.1.3",
    "flask_cors==6.0.5",
    "idna==3.20",
    "itsdangerous==2.2.0",
    "jinja2==3.1.6",
    "jmespath==1.1.0",
    "markupsafe==3.0.4",
    "moto==5.2.5",
    "py_partiql_parser==0.6.3",
    "pycparser==3.12",
    "python_dateutil==2.9.0.post0",
    "pyyaml==6.0.3",
    "requests==2.34.2",
    "responses==0.26.3",
    "s3transfer==0.19.3",
    "six==1.17.0",
    "urllib3==2.8.0",
    "werkzeug==3.1.9",
    "xmltodict==1.0.4",
];

/// The package that has pip, and where its wheels are.
const PIP: (&str, &str) = ("python3-pip-whl", "usr/share/python-wheels");

/// Installs packages into a directory below `into`, nothing else, and nothing on the host.
pub(super) fn install(
    apt: &PrivateApt,
    packages: &[&str],
    into: &Path,
    directory: &str,
) -> Result<Vec<String>> {
    let (package, wheels) = PIP;
    let pip = into.join("pip");
    apt.unpack(&[package], None, &pip)?;
    let wheel = std::fs::read_dir(pip.join(wheels))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pip-"))
        })
        .with_context(|| format!("{package} has no wheel of pip in {wheels}"))?;
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", &wheel).args(["-m", "pip", "install", "--quiet"]);
    command.args(["--disable-pip-version-check", "--no-cache-dir", "--no-warn-conflicts"]);
    // No package may run code of its own to be installed, nor bring what is not listed.
    command.args(["--only-binary", ":all:", "--no-deps", "--root-user-action", "ignore"]);
    command.arg("--target").arg(into.join(directory)).args(packages);
    run(&mut command).context("moto needs python3 and a way to PyPI")?;
    std::fs::remove_dir_all(&pip)?;
    Ok(packages.iter().map(|package| (*package).to_owned()).collect())
}
