//! The configuration file: what the daemon's flags say, and every setting, in TOML.
//!
//! Each line is checked on its own, so that a mistake is named with the line it is on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bindery_host::access::Group;
use bindery_host::daemon_settings::{Change, DaemonSettings, is_truth_value};
use bindery_host::is_name;
use toml::de::{DeTable, DeValue};

use crate::exit::{Failure, Reason};
use crate::setting_names::{SETTINGS, Setting, change, refusal};

/// Where it is, if none is named: read if it is there.
const DEFAULT: &str = "/etc/bindery/bindery.toml";

/// What a configuration file says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ConfigFile {
    /// What can be changed while the daemon runs.
    pub(crate) change: Change,
    /// What takes a restart.
    pub(crate) start: Start,
}

/// What a running daemon cannot change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) group: Option<Group>,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) http_token_file: Option<PathBuf>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) store_mib: Option<u64>,
    pub(crate) unmerge_at_exit: Option<bool>,
    pub(crate) checkpoint_pool: Option<PathBuf>,
    pub(crate) checkpoint_key: Option<PathBuf>,
    /// Key files by domain.
    pub(crate) checkpoint_keys: BTreeMap<String, PathBuf>,
}

/// A line that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    message: String,
}

/// The file to be read: the one named, or the usual one of root's if it is there.
pub(crate) fn locate(named: Option<&Path>) -> Option<PathBuf> {
    let is_usual = || bindery_sys::process::effective_user() == 0 && Path::new(DEFAULT).exists();
    named.map(Path::to_owned).or_else(|| is_usual().then(|| DEFAULT.into()))
}

/// Reads and checks a file.
///
/// # Errors
/// That it cannot be read, or the first line that cannot be, with its number.
pub(crate) fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            Failure::new(Reason::BadInput, format!("{} is no text", path.display()))
        }
        io::ErrorKind::NotFound => Failure::new(
            Reason::NotFound,
            format!(
                "there is no configuration file {}: `bindery daemon --print-config` prints one",
                path.display()
            ),
        ),
        _ => Failure::of_io(path.display(), &error),
    })?;
    parse(&text).map_err(|Mistake { line, message }| {
        Failure::new(Reason::BadInput, format!("{}:{line}: {message}", path.display()))
    })
}

fn parse(text: &str) -> Result<ConfigFile, Mistake> {
    let at = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
    let table = DeTable::parse(text).map_err(|error| Mistake {
        line: error.span().map_or(1, |span| at(span.start)),
        message: error.message().to_owned(),
    })?;
    let (mut file, mut settings, mut lines) = (ConfigFile::default(), Vec::new(), Vec::new());
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    for (name, value) in entries {
        let line = at(name.span().start);
        let wrong = |message| Mistake { line, message };
        if !file.start.take(name.get_ref(), value.get_ref()).map_err(wrong)? {
            let text = scalar(name.get_ref(), value.get_ref()).map_err(wrong)?;
            let setting = Setting::parse(name.get_ref(), &text).map_err(wrong)?;
            lines.push((setting.name.clone(), line));
            settings.push(setting);
        }
    }
    file.change = change(&settings).map_err(|message| Mistake { line: 1, message })?;
    file.change.apply(&DaemonSettings::of_machine()).map_err(|refused| {
        // Of two that do not go together one may be at its default.
        let line_of =
            |wanted: &str| lines.iter().find(|(name, _)| name == wanted).map(|(_, line)| *line);
        let line = line_of(refused.name).or_else(|| line_of(refused.other?));
        Mistake { line: line.unwrap_or(1), message: refused.message }
    })?;
    Ok(file)
}

/// A value as `bindery set` takes it.
fn scalar(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::Integer(number) => Ok(number.to_string().replace('_', "")),
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(is_so) if is_truth_value(name) => Ok(is_so.to_string()),
        other => Err(refusal(name, &format!("of type {}", other.type_str()))),
    }
}

impl Start {
    /// Takes a line that is no setting. False if it is not one of these.
    fn take(&mut self, name: &str, value: &DeValue<'_>) -> Result<bool, String> {
        let path = || match value {
            DeValue::String(text) if text.starts_with('/') => Ok(Some(PathBuf::from(&**text))),
            _ => Err(format!("{name} is an absolute path in quotes")),
        };
        match name {
            "socket" => self.socket = path()?,
            "group" => {
                let DeValue::String(group) = value else {
                    return Err("group is the name of a group in quotes".into());
                };
                let found = Group::find(group).map_err(|error| format!("group: {error}"))?;
                self.group = Some(found);
            }
            "http" => {
                let DeValue::String(text) = value else {
                    return Err("http is an address and a port in quotes".into());
                };
                let address = text.parse().map_err(|_| {
                    format!("http is an address and a port, 127.0.0.1:9480, not {text:?}")
                })?;
                self.http = Some(address);
            }
            "http_token_file" => self.http_token_file = path()?,
            "log" => self.log = path()?,
            "checkpoint_pool" => self.checkpoint_pool = path()?,
            "checkpoint_key" => self.checkpoint_key = path()?,
            "checkpoint" => self.checkpoint_keys = checkpoint_keys(value)?,
            "store_mib" => {
                let mib = scalar(name, value).ok().and_then(|text| text.parse().ok());
                let mib = mib.filter(|mib| STORES_MIB.contains(mib));
                let (least, most) = (STORES_MIB.start(), STORES_MIB.end());
                self.store_mib =
                    Some(mib.ok_or_else(|| format!("store_mib is {least} to {most}, in MiB"))?);
            }
            "unmerge_at_exit" => match value {
                DeValue::Boolean(is_so) => self.unmerge_at_exit = Some(*is_so),
                _ => return Err("unmerge_at_exit is true or false".into()),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads the table `[checkpoint.keys]`, which is all that `[checkpoint]` has.
fn checkpoint_keys(value: &DeValue<'_>) -> Result<BTreeMap<String, PathBuf>, String> {
    let wrong = || "checkpoint has one table, [checkpoint.keys], with lines such as web = \"/etc/bindery/web.key\"";
    let DeValue::Table(table) = value else { return Err(wrong().into()) };
    let mut keys = BTreeMap::new();
    for (name, value) in table {
        let ("keys", DeValue::Table(domains)) = (&**name.get_ref(), value.get_ref()) else {
            return Err(wrong().into());
        };
        for (domain, path) in domains {
            let domain = domain.get_ref().to_string();
            let path = match path.get_ref() {
                DeValue::String(path) if path.starts_with('/') => PathBuf::from(&**path),
                _ => return Err(format!("the key file of {domain} is an absolute path in quotes")),
            };
            let name = domain.split_once(':').map_or(&*domain, |(_, name)| name);
            if !is_name(name) {
                return Err(format!("{domain} is neither the name of a domain nor UID:NAME"));
            }
            keys.insert(domain, path);
        }
    }
    Ok(keys)
}

/// What a store may take at most, in MiB.
pub(crate) const STORES_MIB: std::ops::RangeInclusive<u64> = 1..=1 << 30;

/// A file with every setting at its default, commented out.
pub(crate) fn example() -> String {
    let mut text = String::from(
        "# Bindery's daemon. Every setting is here with its default; take away the # to change it.\n\
         # `bindery reload` has a running daemon read it again; flags of `bindery daemon` go before it.\n\n\
         # These take a restart.\n\
         # socket = \"/run/bindery/bindery.sock\"\n\
         # group = \"bindery\"                   # default: none; its members may use the daemon, too\n\
         # http = \"127.0.0.1:9480\"             # default: not served\n\
         # http_token_file = \"/etc/bindery/token\"   # needed where http is no loopback address\n\
         # log = \"/var/log/bindery.log\"        # default: stderr\n\
         # store_mib = 65536                   # default: no limit\n\
         # unmerge_at_exit = false\n\
         # checkpoint_pool = \"/srv/pool\"       # default: none; the device or directory of a pool\n\
         # checkpoint_key = \"/etc/bindery/key\" # default: none; new domains are encrypted in the pool with it.\n\
         #   Keys of single domains stand in a table at the end: [checkpoint.keys], web=\"/etc/bindery/web.key\"\n\n",
    );
    for line in SETTINGS.lines().skip(1) {
        let (usage, meaning) = line.trim().split_once("  ").expect("a name and what it means");
        let name = usage.split('=').next().unwrap_or_default();
        let (default, note) = default_of(name);
        text.push_str(&format!("# {}\n# {name} = {default}{note}\n\n", meaning.trim()));
    }
    text
}

fn default_of(name: &str) -> (String, &'static str) {
    let defaults = DaemonSettings::with_workers(2);
    let lines = crate::setting_names::lines(&defaults);
    let of_line = |line: &String| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    let value = lines.iter().find_map(of_line).unwrap_or_else(|| "0".into());
    let note = if name == "workers" { "   # 1 on a machine with one CPU" } else { "" };
    let is_bare = value.parse::<u64>().is_ok() || value.parse::<bool>().is_ok();
    if is_bare { (value, note) } else { (format!("\"{value}\""), note) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mistake(text: &str) -> (usize, String) {
        let Mistake { line, message } = parse(text).unwrap_err();
        (line, message)
    }

    #[test]
    fn a_file_says_settings_and_what_takes_a_restart() {
        let text = "socket = \"/run/b.sock\"\nperiod = \"2s\"\nworkers = 3\nunmerge_at_exit = true\n\
                    advisor_max_pages_to_scan = 50_000\nacross_nodes = false\n";
        let file = parse(text).unwrap();
        assert_eq!(file.start.socket, Some("/run/b.sock".into()));
        assert_eq!(file.start.unmerge_at_exit, Some(true));
        assert_eq!((file.change.period_ms, file.change.workers), (Some(2000), Some(3)));
        assert_eq!(file.change.advisor_max_pages_to_scan, Some(50_000));
        assert_eq!(file.change.across_nodes, Some(false));
        assert_eq!(parse("").unwrap(), ConfigFile::default());
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line, word) in [
            ("workers = 2\nworker = 3\n", 2, "worker"),
            ("\n\nworkers = 0\n", 3, "1 to 256"),
            ("workers = 2\nperiod = \"9ms\"\n", 2, "10"),
            ("workers = \n", 1, ""),
            ("workers = 1\nworkers = 2\n", 2, "duplicate"),
            ("advisor_mode = true\n", 1, "none, scan-time or steady, not of type boolean"),
            ("workers = 2\nworkers_max = 2.5\n", 2, "there is no setting workers_max"),
            ("advisor_max_cpu = -20\n", 1, "1 to 25600, not \"-20\""),
            ("workers = 2\nacross_nodes = 1\n", 2, "across_nodes is true or false, not \"1\""),
            ("store_mib = true\n", 1, "1 to"),
            ("# comment\nsocket = \"relative\"\n", 2, "absolute"),
            ("store_mib = 0\n", 1, "1 to"),
            ("\ngroup = 7\n", 2, "in quotes"),
            ("http = \"localhost\"\n", 1, "an address and a port"),
            ("http_token_file = \"token\"\n", 1, "absolute"),
            ("\ncheckpoint_pool = \"guests\"\n", 2, "absolute"),
            ("workers = 1\ngroup = \"no-such-group\"\n", 2, "no group no-such-group"),
            ("\npages_to_scan = 100\n", 2, "advisor_mode=none"),
            ("# mine\nworkers = 2\nadvisor_max_pages_to_scan = 1000\n", 3, "advisor_min_"),
            ("\npressure_available_high = 10\n", 2, "pressure_available_low (20)"),
            ("workers = 0\nadvisor_max_cpu = true\n", 2, "advisor_max_cpu"),
            ("workers = many\n", 1, ""),
            ("period = 1\nadvisor_mode = 1\n", 1, "period"),
            ("[advisor]\nmode = 1\n", 1, "advisor"),
        ] {
            let (at, message) = mistake(text);
            assert_eq!(at, line, "{text:?}: {message}");
            assert!(message.contains(word), "{text:?}: {message}");
        }
    }

    #[test]
    fn the_example_has_every_setting_at_its_default() {
        let text = example();
        assert_eq!(parse(&text).unwrap(), ConfigFile::default());
        let settings = text.lines().filter_map(|line| {
            let line = line.strip_prefix("# ")?;
            line.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')).then_some(line)
        });
        let all: String = settings.map(|line| format!("{line}\n")).collect();
        // The example's group need not be on the machine that tests run on.
        let mut file = all.replace("pages_to_scan = 0\n", "").replace("group = \"", "#\"");
        for name in ["advisor_min_", "advisor_max_"] {
            // The line above is taken out of these two as well.
            assert!(all.contains(&format!("{name}pages_to_scan = ")));
        }
        file.push('\n');
        let parsed = parse(&file).unwrap_or_else(|mistake| panic!("{mistake:?} in\n{file}"));
        let settings = parsed.change.apply(&DaemonSettings::with_workers(1)).unwrap();
        assert_eq!(settings, DaemonSettings::with_workers(2));
    }

    proptest! {
        #[test]
        fn no_text_stops_the_parser(text in "[a-z_=\"0-9 \\[\\]\\n.#']{0,200}") {
            let _ = parse(&text);
        }
    }
}
