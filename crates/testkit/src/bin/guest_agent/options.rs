//! `--name value` pairs.

use std::collections::BTreeMap;
use std::str::FromStr;

/// The options of one subcommand.
#[derive(Debug)]
pub(crate) struct Options {
    values: BTreeMap<String, String>,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        while let Some(argument) = arguments.next() {
            let name = argument
                .strip_prefix("--")
                .ok_or_else(|| format!("expected an option, found {argument:?}"))?;
            let value = arguments.next().ok_or_else(|| format!("--{name} needs a value"))?;
            values.insert(name.to_owned(), value);
        }
        Ok(Self { values })
    }

    /// The option's value, or the default when it was not given.
    pub(crate) fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        self.values.get(name).map_or(Ok(default), |text| {
            text.parse().map_err(|_| format!("--{name}: {text:?} is not a valid value"))
        })
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str, String> {
        self.values.get(name).map(String::as_str).ok_or_else(|| format!("--{name} is needed"))
    }
}
