//! `bindery ps`, `unmerge`, `merge`, `unmanage`, `set`, `reload` and `stop`.

use bindery_host::protocol::{Answer, Request};
use bindery_host::status::GuestStatus;
use bindery_units::PageCount;

use crate::args::{Global, GuestArgs, SetArgs, StopArgs};
use crate::connect::{ask, ask_guests, connect, misplaced};
use crate::exit::{Failure, Reason};
use crate::output::{Table, human_bytes, print, print_json};
use crate::setting_names;

/// Lists the guests.
pub(crate) fn ps(global: &Global) -> Result<(), Failure> {
    let guests = ask_guests(&mut connect(global)?)?;
    if global.json {
        return print_json(&guests);
    }
    table(&guests).print()?;
    print(|out| advice(&guests).try_for_each(|line| writeln!(out, "{line}")))
}

/// The guests, one a line.
pub(crate) fn table(guests: &[GuestStatus]) -> Table {
    let mut table = Table::new([
        "NAME",
        " PID",
        "DOMAIN",
        " RAM",
        " PRIVATE",
        " MERGED",
        " ZERO",
        " HUGE",
        " BREAKS",
        " MAPPINGS",
        "STATE",
        "COMMAND",
    ]);
    for guest in guests {
        table.row([
            guest.name.clone(),
            guest.pid.to_string(),
            guest.domain.clone(),
            human_bytes(guest.ram_bytes),
            human_bytes(guest.private_bytes),
            human_bytes(guest.merged_bytes),
            human_bytes(guest.zero_bytes),
            human_bytes(guest.huge_bytes),
            guest.counts.breaks.to_string(),
            format!("{}/{}", guest.mappings, guest.mappings_max),
            guest.state.name.clone(),
            guest.command.split_ascii_whitespace().next().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// What operators can do for guests that are not well.
pub(crate) fn advice(guests: &[GuestStatus]) -> impl Iterator<Item = String> {
    guests.iter().filter_map(|guest| {
        let advice = guest.state.advice.as_ref()?;
        Some(format!("{}: {advice}", guest.name))
    })
}

/// Makes a guest's pages private.
pub(crate) fn unmerge(global: &Global, arguments: &GuestArgs) -> Result<(), Failure> {
    let answer = ask(global, &Request::Unmerge { guest: arguments.guest.clone() })?;
    print_done(global, answer, "is unmerged", "; `bindery merge` merges it again")
}

/// Merges a guest again.
pub(crate) fn merge(global: &Global, arguments: &GuestArgs) -> Result<(), Failure> {
    let answer = ask(global, &Request::Merge { guest: arguments.guest.clone() })?;
    print_done(global, answer, "is merged again", "")
}

/// Lets a guest go.
pub(crate) fn unmanage(global: &Global, arguments: &GuestArgs) -> Result<(), Failure> {
    let answer = ask(global, &Request::Unmanage { guest: arguments.guest.clone() })?;
    print_done(global, answer, "is no longer managed", "")
}

fn print_done(global: &Global, answer: Answer, what: &str, next: &str) -> Result<(), Failure> {
    let Answer::Done { guest, pages } = answer else { return Err(misplaced(&answer)) };
    if global.json {
        return print_json(&serde_json::json!({ "guest": guest, "pages": pages }));
    }
    let given_back = match pages {
        0 => String::new(),
        pages => format!(" ({} made private)", human_bytes(PageCount(pages).bytes().0)),
    };
    print(|out| writeln!(out, "{guest} {what}{given_back}{next}"))
}

/// Changes settings, or shows them.
pub(crate) fn set(global: &Global, arguments: &SetArgs) -> Result<(), Failure> {
    let change = setting_names::change(&arguments.settings)
        .map_err(|message| Failure::new(Reason::Usage, message))?;
    print_settings(global, ask(global, &Request::Set(Box::new(change)))?)
}

/// Has the configuration file read again.
pub(crate) fn reload(global: &Global) -> Result<(), Failure> {
    print_settings(global, ask(global, &Request::Reload {})?)
}

fn print_settings(global: &Global, answer: Answer) -> Result<(), Failure> {
    match answer {
        Answer::Settings(settings) if global.json => print_json(&settings),
        Answer::Settings(settings) => print(|out| {
            setting_names::lines(&settings).iter().try_for_each(|line| writeln!(out, "{line}"))
        }),
        answer => Err(misplaced(&answer)),
    }
}

/// Ends the daemon.
pub(crate) fn stop(global: &Global, arguments: &StopArgs) -> Result<(), Failure> {
    match ask(global, &Request::Stop { unmerge: arguments.unmerge })? {
        Answer::Stopping {} if global.json => print_json(&serde_json::json!({ "stopping": true })),
        Answer::Stopping {} => print(|out| writeln!(out, "the daemon ends")),
        answer => Err(misplaced(&answer)),
    }
}
