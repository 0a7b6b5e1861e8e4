//! Names of moves and watches: the two highest bits say which part of the transfer manager one belongs to, so that no part's meets another's.

/// A part of the transfer manager that has moves and watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdPart {
    /// Transfers by name: what their legs and pulls move.
    Transfers,
    /// Swaps of blocks between device and host.
    Lives,
    Relays,
}

const SHIFT: u32 = 62;

/// Whose this name is; nobody's are those that were never given.
pub(super) fn part(id: u64) -> Option<IdPart> {
    [IdPart::Transfers, IdPart::Lives, IdPart::Relays].into_iter().find(|part| first(*part) >> SHIFT == id >> SHIFT)
}

/// The number from which a part names.
pub(super) const fn first(part: IdPart) -> u64 {
    match part {
        IdPart::Transfers => 0,
        IdPart::Lives => 1 << SHIFT,
        IdPart::Relays => 2 << SHIFT,
    }
}

/// What is left of a name without its part.
pub(super) fn rest(id: u64) -> u64 {
    id & ((1 << SHIFT) - 1)
}
