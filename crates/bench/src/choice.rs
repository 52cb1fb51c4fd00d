//! Names of values that are chosen on the command line.

use clap::ValueEnum;

/// Returns the name of a value on the command line, which is also its name in reports.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    let named = value.to_possible_value().expect("every value can be chosen");
    named.get_name().to_owned()
}
