//! The word that something can be fetched: said once for all that has happened since it was said, behind what else is to be done. A wait
//! behind very much of that is cut short.

/// How many actions may come between what has happened and the word of it.
const BEHIND_MAX: u32 = 64;

/// Whether that word is to be said.
#[derive(Debug, Default)]
pub(super) struct Telling {
    pub(super) is_due: bool,
    /// How many actions have gone out since.
    behind: u32,
}

impl Telling {
    /// Whether it is what is to be done next, and if so, that it was said.
    pub(super) fn is_next(&mut self, is_nothing_else: bool) -> bool {
        if !self.is_due {
            return false;
        }
        self.behind += 1;
        let is_next = is_nothing_else || self.behind > BEHIND_MAX;
        if is_next {
            *self = Self::default();
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_and_not_behind_everything() {
        let mut telling = Telling::default();
        assert!(!telling.is_next(true), "nothing has happened");
        telling.is_due = true;
        assert!(!telling.is_next(false) && telling.is_next(true) && !telling.is_next(true));
        telling.is_due = true;
        let said = (0..=BEHIND_MAX).find(|_| telling.is_next(false));
        assert_eq!((said, telling.is_due), (Some(BEHIND_MAX), false));
    }
}
