//! The guest's program: a few 16-bit routines, assembled by hand.
//!
//! Each works on the window at ES, of 64 KiB at most, and ends by writing to port [`DONE_PORT`].
//! Real mode is enough: the host moves ES's base over the memory.

use bindery_units::PAGE_BYTES;

/// Writing here ends a routine.
pub(super) const DONE_PORT: u16 = 0x10;

/// One routine: where it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routine {
    /// Adds one to the word at offset BP of each of SI pages, DX times over.
    Increment,
    /// Stores EAX into CX words.
    Fill,
    /// Adds CX words up in EAX.
    Sum,
    /// Adds one to the first word of each page of a list: CX entries at SI, in the page of code. ES
    /// reaches beyond the window here (4 GiB from its base).
    Touch,
}

/// `mov cx, si; mov di, bp; a: inc dword es:[di]; add di, 4096; loop a; dec dx; jnz start; out; hlt`
const INCREMENT: [u8; 20] = [
    0x89,
    0xF1,
    0x89,
    0xEF,
    0x26,
    0x66,
    0xFF,
    0x05,
    0x81,
    0xC7,
    0x00,
    0x10,
    0xE2,
    0xF6,
    0x4A,
    0x75,
    0xEF,
    0xE6,
    DONE_PORT as u8,
    0xF4,
];

/// `rep stosd; out; hlt`
const FILL: [u8; 6] = [0xF3, 0x66, 0xAB, 0xE6, DONE_PORT as u8, 0xF4];

/// `a: add eax, es:[di]; add di, 4; loop a; out; hlt`
const SUM: [u8; 12] =
    [0x26, 0x66, 0x03, 0x05, 0x83, 0xC7, 0x04, 0xE2, 0xF7, 0xE6, DONE_PORT as u8, 0xF4];

/// `a: mov ebx, [si]; inc dword es:[ebx]; add si, 4; loop a; out; hlt`
const TOUCH: [u8; 16] = [
    0x66,
    0x8B,
    0x1C,
    0x26,
    0x67,
    0x66,
    0xFF,
    0x03,
    0x83,
    0xC6,
    0x04,
    0xE2,
    0xF3,
    0xE6,
    DONE_PORT as u8,
    0xF4,
];

/// Where [`Routine::Touch`]'s list begins, in the page of code.
pub(super) const LIST_AT: usize = 0x800;

/// The most entries of that list.
pub(super) const LIST_MAX: usize = (PAGE_BYTES - LIST_AT) / 4;

impl Routine {
    const ALL: [Self; 4] = [Self::Increment, Self::Fill, Self::Sum, Self::Touch];

    /// Its offset in the page of code.
    pub(super) const fn entry(self) -> u64 {
        match self {
            Self::Increment => 0x100,
            Self::Fill => 0x200,
            Self::Sum => 0x300,
            Self::Touch => 0x400,
        }
    }

    const fn code(self) -> &'static [u8] {
        match self {
            Self::Increment => &INCREMENT,
            Self::Fill => &FILL,
            Self::Sum => &SUM,
            Self::Touch => &TOUCH,
        }
    }
}

/// Copies the routines to their places in the page of code.
pub(super) fn install(page: &mut [u8]) {
    for routine in Routine::ALL {
        let at = routine.entry() as usize;
        page[at..at + routine.code().len()].copy_from_slice(routine.code());
    }
}
