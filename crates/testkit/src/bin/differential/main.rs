//! Does random things to its memory and says what came of each: one line an operation, the same in
//! every run of the same seed. `tests/differential.rs` compares a run without Bindery with runs under it.
//!
//! ```text
//! differential SEED SEQUENCE        as in `differential 7 0-499,612`
//! ```
//! Each operation draws from the seed and its own number, so that a sequence can be shortened without
//! another operation changing. A line has the operation's number, its name, what it returned, and a
//! digest of the pages that it was about; every sixteenth has a digest of all memory.
//!
//! To add an operation: write a function like those in `memory.rs`, and a line in [`OPERATIONS`].

mod calls;
mod children;
mod files;
mod memory;
mod outside;
mod random;
mod world;

use std::fmt::Write as _;

use random::Random;
use world::{Start, World};

/// Does one thing. What it writes is what must be the same with Bindery.
type Operation = fn(&mut World, &mut Random, &mut String);

/// Name, how often of all draws, and what is done.
const OPERATIONS: &[(&str, u32, Operation)] = &[
    ("fill", 60, memory::fill),
    ("write", 30, memory::write),
    ("rest", 60, memory::rest),
    ("offer", 25, memory::offer),
    ("renew", 5, memory::renew),
    ("map", 25, memory::map),
    ("unmap", 8, memory::unmap),
    ("advise", 40, memory::advise),
    ("free", 6, memory::free),
    ("guard", 3, memory::guard),
    ("protect", 20, memory::protect),
    ("protect_by_key", 2, memory::protect_by_key),
    ("shrink", 4, memory::shrink),
    ("grow", 5, memory::grow),
    ("move_fixed", 10, memory::move_fixed),
    ("move_and_keep", 6, memory::move_and_keep),
    ("alias", 4, memory::alias),
    ("lock", 5, memory::lock),
    ("lock_all", 1, memory::lock_all),
    ("resident", 3, memory::resident),
    ("sync", 3, memory::sync),
    ("threads", 6, memory::threads),
    ("fork", 8, children::fork),
    ("fork_plainly", 4, children::fork_plainly),
    ("clone", 4, children::clone),
    ("clone_raw", 4, children::clone_raw),
    ("fork_and_close", 3, children::fork_and_close),
    ("share_with_child", 4, children::share_with_child),
    ("spawn", 2, children::spawn),
    ("touch_in_child", 6, children::touch),
    ("read_file", 8, files::read),
    ("write_file", 8, files::write),
    ("truncate", 4, files::truncate),
    ("allocate", 4, files::allocate),
    ("send_file", 4, files::send),
    ("copy_range", 4, files::copy_range),
    ("splice", 4, files::splice),
    ("pipe_and_back", 5, files::pipe_and_back),
    ("vmsplice", 5, files::vmsplice),
    ("direct", 8, files::direct),
    ("uring", 4, files::uring),
    ("close_all", 1, files::close_all),
    ("dup_over_all", 1, files::dup_over_all),
    ("read_from_outside", 5, outside::read),
    ("write_from_outside", 5, outside::write),
    ("peek", 2, outside::peek),
    ("poke", 2, outside::poke),
    ("memory_file", 3, outside::memory_file),
    ("userfault_copy", 4, outside::userfault_copy),
    ("userfault_move", 4, outside::userfault_move),
    ("signal", 4, outside::signal),
    ("exec", 1, memory::exec),
];

/// Operations whose results are not compared, only what they leave in memory, each with why that is no
/// fault of Bindery's.
/// One more is where it arises: what may be taken of pages that may not be read (`files::is_unreadable`).
const LEGITIMATE: &[(&str, &str)] = &[
    ("offer", "the kernel refuses the advice where it has no KSM; Bindery takes it"),
    ("resident", "which pages are resident is the kernel's business; the vector is not compared"),
    ("peek", "a debugger gets EIO for pages that are absent under management"),
    ("poke", "a debugger gets EIO for pages that are absent or merged"),
    ("memory_file", "as a debugger: /proc/self/mem gives EIO for pages that are absent or merged"),
];

/// How many operations come between two looks at all memory.
const LOOK_PERIOD: u32 = 16;

fn main() {
    let start = Start::of_arguments().unwrap_or_else(|problem| {
        eprintln!("differential: {problem}; see its first lines for how it is used");
        std::process::exit(2);
    });
    let mut world = World::new(start);
    while let Some(number) = world.next() {
        let mut random = Random::new(world.seed(), u64::from(number));
        let (name, operation) = draw(&mut random);
        world.begin(number, name);
        let mut result = String::new();
        operation(&mut world, &mut random, &mut result);
        if LEGITIMATE.iter().any(|(known, _)| *known == name) {
            "~".clone_into(&mut result);
        }
        let (first, count) = world.touched();
        let _ = write!(result, " [{first}+{count}] {:016x}", world.digest(first, count));
        if number % LOOK_PERIOD == 0 {
            let _ = write!(result, " all {:016x}", world.digest(0, world::PAGES));
        }
        world.end(&result);
    }
    world.finish();
}

/// The operation that comes next.
fn draw(random: &mut Random) -> (&'static str, Operation) {
    let all: u32 = OPERATIONS.iter().map(|(_, weight, _)| weight).sum();
    let mut at = random.below(u64::from(all)) as u32;
    for (name, weight, operation) in OPERATIONS {
        if at < *weight {
            return (name, *operation);
        }
        at -= weight;
    }
    unreachable!("the weights add up")
}
