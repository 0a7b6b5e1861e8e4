//! What moves for transfers, by its name: a place in a list, and which use of a place that is. Names come back from outside at any time;
//! one whose place has another use is nobody's. Uses
//! begin anew after a thousand million.

use penstock_session::transfers::table::EntryKey;

use crate::action::MoveId;

/// Names have 62 bits: the lower 32 are the place, the others the use.
const USES: u64 = (1 << 30) - 1;

/// Of which transfer a move is, with which rank of the other side, and which of its parts it is.
pub(super) type Mover = (EntryKey, u16, u64);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Moves {
    places: Vec<Option<(MoveId, Mover)>>,
    free: Vec<u32>,
    uses: u64,
}

impl Moves {
    /// The next one gets this name.
    pub(super) fn next(&self) -> MoveId {
        let place = self.free.last().map_or(self.places.len() as u64, |&place| place.into());
        MoveId((self.uses & USES) << 32 | place)
    }

    /// Begins it.
    pub(super) fn add(&mut self, mover: Mover) -> MoveId {
        let id = self.next();
        self.uses += 1;
        match self.free.pop().and_then(|place| self.places.get_mut(place as usize)) {
            Some(place) => *place = Some((id, mover)),
            None => self.places.push(Some((id, mover))),
        }
        id
    }

    /// Whose it is.
    pub(super) fn get(&self, id: MoveId) -> Option<Mover> {
        let (known, mover) = (*self.places.get(place_of(id))?)?;
        (known == id).then_some(mover)
    }

    /// It is over.
    pub(super) fn remove(&mut self, id: MoveId) -> Option<Mover> {
        let mover = self.get(id)?;
        *self.places.get_mut(place_of(id))? = None;
        self.free.push(place_of(id) as u32);
        Some(mover)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in the order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MoveId, Mover)> + '_ {
        self.places.iter().flatten().copied()
    }

    /// Gives back memory that a peak has left behind.
    pub(super) fn shrink(&mut self) {
        if self.len() >= self.places.capacity() / 8 {
            return;
        }
        let used = self.places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.places.truncate(used);
        self.places.shrink_to(used * 2);
        self.free.retain(|&place| (place as usize) < used);
        self.free.shrink_to(self.free.len() * 2);
    }
}

fn place_of(id: MoveId) -> usize {
    (id.0 & u64::from(u32::MAX)) as usize
}

#[cfg(test)]
mod tests;
