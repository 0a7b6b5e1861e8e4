//! A slot of a bounce exchange: one side asks, the other does and answers, through one word.
//!
//! ```text
//! line 0     sequence << 2 | state
//! line 1     answer
//! lines      question
//! ```
//!
//! ```text
//!         ask            take           answer
//!  Free ───────▶ Posted ───────▶ Taken ───────▶ Done
//!   ▲               │                             │
//!   └── withdraw ───┴──────────── free ───────────┘
//! ```
//!
//! The asker does everything but *take* and *answer*. *Withdraw* and *take* are compare-and-swaps on the same
//! word, so exactly one of them happens: a question that was withdrawn was never begun. The question, the
//! answer and whatever bytes go with the slot belong to the asker in Free, Posted and Done, and to
//! the answerer in Taken. The sequence makes an answer to an earlier question visible as nonsense.
//!
//! Each end believes nothing of what it reads: the other may have written anything at any time.

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU64, Ordering};

/// Words of an answer.
pub const ANSWER_WORDS: usize = 2;

const LINE_WORDS: usize = 8;
const STATE_AT: usize = 0;
const ANSWER_AT: usize = LINE_WORDS;
const QUESTION_AT: usize = 2 * LINE_WORDS;

const FREE: u64 = 0;
const POSTED: u64 = 1;
const TAKEN: u64 = 2;
const DONE: u64 = 3;
const STATE_BITS: u32 = 2;

/// Bytes of a slot whose questions have at most so many words.
pub const fn slot_bytes(question_words: usize) -> usize {
    (QUESTION_AT + question_words.next_multiple_of(LINE_WORDS)) * size_of::<u64>()
}

/// The word of a slot holds what its other end never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// How far a question has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BounceStage {
    Posted,
    /// The other end is at it.
    Taken,
    Done([u64; ANSWER_WORDS]),
}

/// The end that asks. One for each slot.
#[derive(Debug)]
pub struct Requester {
    words: SharedRef<[AtomicU64]>,
    sequence: u64,
}

/// The end that answers. One for each slot.
#[derive(Debug)]
pub struct Responder {
    words: SharedRef<[AtomicU64]>,
}

/// A slot inside this process, for questions of so many words.
pub fn pair(question_words: usize) -> (Requester, Responder) {
    let words = slot_bytes(question_words) / size_of::<u64>();
    let words = SharedRef::heap_slice((0..words).map(|_| AtomicU64::new(0)));
    (Requester { words: words.clone(), sequence: 0 }, Responder { words })
}

#[cfg(not(loom))]
fn mapped(place: &SharedRange, offset: usize, question_words: usize) -> Result<SharedRef<[AtomicU64]>, RingError> {
    place.cells(offset, slot_bytes(question_words) / size_of::<u64>())
}

impl Requester {
    /// The asking end of the slot at `offset` bytes of a place, all zeroes at first.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize, question_words: usize) -> Result<Self, RingError> {
        Ok(Self { words: mapped(place, offset, question_words)?, sequence: 0 })
    }

    fn word(&self, state: u64) -> u64 {
        self.sequence << STATE_BITS | state
    }

    /// Asks. Only while the slot is free, with a question that fits; bytes that go with it come first.
    pub fn ask(&mut self, question: &[u64]) {
        debug_assert!(QUESTION_AT + question.len() <= self.words.len(), "a question longer than its slot");
        self.sequence = self.sequence.wrapping_add(1);
        for (word, &value) in self.words[QUESTION_AT..].iter().zip(question) {
            word.store(value, Ordering::Relaxed);
        }
        // SYNC bounce-ask: pairs with `Answerer::take`.
        self.words[STATE_AT].store(self.word(POSTED), Ordering::Release);
    }

    /// How far the question has come. When it is done, the bytes that go with it are this end's again.
    pub fn look(&self) -> Result<BounceStage, Nonsense> {
        // SYNC bounce-answer: pairs with `Answerer::answer`.
        let word = self.words[STATE_AT].load(Ordering::Acquire);
        if word == self.word(DONE) {
            let answer = |index: usize| self.words[ANSWER_AT + index].load(Ordering::Relaxed);
            return Ok(BounceStage::Done(std::array::from_fn(answer)));
        }
        match word {
            _ if word == self.word(TAKEN) => Ok(BounceStage::Taken),
            _ if word == self.word(POSTED) => Ok(BounceStage::Posted),
            _ => Err(Nonsense),
        }
    }

    /// Takes the question back. `true`: nobody had begun, nobody will, and the slot is free.
    pub fn try_cancel(&mut self) -> bool {
        let word = &self.words[STATE_AT];
        // SYNC bounce-withdraw: against `Answerer::take`'s exchange; one of the two fails.
        word.compare_exchange(self.word(POSTED), self.word(FREE), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Frees a slot whose question is done.
    pub fn free(&mut self) {
        // Relaxed: the next `ask` publishes, and until then nobody looks at anything but this word.
        self.words[STATE_AT].store(self.word(FREE), Ordering::Relaxed);
    }
}

/// A question in the answering end's hands.
#[derive(Debug)]
#[must_use = "who takes a question answers it"]
pub struct Taken {
    word: u64,
}

impl Responder {
    /// The answering end of the slot at `offset` bytes of a place.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize, question_words: usize) -> Result<Self, RingError> {
        Ok(Self { words: mapped(place, offset, question_words)? })
    }

    /// Takes a question if there is one, copied once into `question`. The bytes that go with it are
    /// this end's until it answers.
    pub fn take(&self, question: &mut [u64]) -> Option<Taken> {
        let state = &self.words[STATE_AT];
        let seen = state.load(Ordering::Relaxed);
        if seen & TAKEN != 0 || seen & POSTED == 0 {
            return None;
        }
        let taken = seen & !POSTED | TAKEN;
        // SYNC bounce-ask: pairs with `Asker::ask`. SYNC bounce-withdraw: against `Asker::withdraw`.
        state.compare_exchange(seen, taken, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        for (value, word) in question.iter_mut().zip(&self.words[QUESTION_AT..]) {
            *value = word.load(Ordering::Relaxed);
        }
        Some(Taken { word: taken })
    }

    /// Answers, after all bytes that go with it.
    pub fn answer(&self, taken: &Taken, answer: [u64; ANSWER_WORDS]) {
        for (word, value) in self.words[ANSWER_AT..].iter().zip(answer) {
            word.store(value, Ordering::Relaxed);
        }
        // SYNC bounce-answer: pairs with `Asker::look`.
        self.words[STATE_AT].store(taken.word | DONE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_asked_taken_answered_and_the_slot_used_again() {
        let (mut asker, answerer) = pair(3);
        let mut question = [0; 3];
        assert!(answerer.take(&mut question).is_none(), "nothing was asked yet");
        for round in 1..4 {
            asker.ask(&[round, 2, 3]);
            assert_eq!(asker.look(), Ok(BounceStage::Posted));
            let taken = answerer.take(&mut question).unwrap();
            assert_eq!(question, [round, 2, 3]);
            assert!(answerer.take(&mut question).is_none(), "taken once");
            assert_eq!(asker.look(), Ok(BounceStage::Taken));
            assert!(!asker.try_cancel(), "what has begun is not taken back");
            answerer.answer(&taken, [round, 9]);
            assert_eq!(asker.look(), Ok(BounceStage::Done([round, 9])));
            asker.free();
            assert!(answerer.take(&mut question).is_none());
        }
    }

    #[test]
    fn a_withdrawn_question_is_never_taken() {
        let (mut asker, answerer) = pair(1);
        asker.ask(&[1]);
        assert!(asker.try_cancel());
        assert!(answerer.take(&mut [0]).is_none());
        asker.ask(&[2]);
        let mut question = [0];
        assert!(answerer.take(&mut question).is_some());
        assert_eq!(question, [2]);
    }

    #[test]
    fn any_other_word_is_nonsense_and_harms_nobody() {
        let place = SharedRange::heap(slot_bytes(2));
        let mut asker = Requester::mapped(&place, 0, 2).unwrap();
        let answerer = Responder::mapped(&place, 0, 2).unwrap();
        let word = place.atomic_u64(0).unwrap();
        asker.ask(&[1, 2]);
        for nonsense in [0, 1, 3, u64::MAX, 5 << 2 | DONE] {
            word.store(nonsense, Ordering::Relaxed);
            assert_eq!(asker.look(), Err(Nonsense), "{nonsense:#x}");
            assert!(!asker.try_cancel());
            let mut question = [0; 2];
            if let Some(taken) = answerer.take(&mut question) {
                answerer.answer(&taken, [0, 0]);
            }
        }
        assert!(Requester::mapped(&place, 0, 9).is_err(), "a question longer than the place");
    }
}
