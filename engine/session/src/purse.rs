//! Credits of several stocks, taken together or not at all.
//!
//! Whoever cannot have all of what it wants gets nothing and waits in line, and the line is served in its order only: two that need
//! two each can never hold one each, and who wants much is not starved by many who want little.

use std::collections::VecDeque;

use penstock_core::Credits;

#[cfg(test)]
mod tests;

/// Somebody who may have to wait, under a number that the owner of the purse has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CreditWaiter(pub u64);

/// What came of asking for credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// They are taken.
    Now,
    /// There are too few, or others wait already: it stands in line, and will be among the served.
    Waits,
    /// A stock has never as many.
    Never {
        /// Which stock.
        stock: usize,
        /// How many it has when nobody has any.
        limit: u64,
    },
    /// The line is as long as it may be.
    Full {
        /// How many wait.
        most: usize,
    },
}

/// Credits do not add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unbalanced {
    /// More was given back than is taken.
    #[error("{given} credits of stock {stock} were given back and {held} are taken: something was given back twice")]
    GivenTwice {
        stock: usize,
        /// How many were given back.
        given: u64,
        /// How many are taken.
        held: u64,
    },
    /// A stock and the account of it differ.
    #[error("stock {stock} has {outstanding} credits out and the account says {held}")]
    Differs {
        stock: usize,
        /// How many the stock misses.
        outstanding: u64,
        /// How many the account says.
        held: u64,
    },
    /// The first in line could be served.
    #[error("waiter {0} is first in line and could be served")]
    Slept(u64),
}

/// Several stocks and one line.
#[derive(Debug)]
pub struct CreditPool<const N: usize> {
    stocks: [Credits; N],
    held: [u64; N],
    line: VecDeque<(CreditWaiter, [u64; N])>,
    line_max: usize,
}

impl<const N: usize> CreditPool<N> {
    /// Full stocks of these sizes, and a line of at most so many.
    pub fn new(limits: [u64; N], line_max: usize) -> Self {
        Self { stocks: limits.map(Credits::new), held: [0; N], line: VecDeque::new(), line_max }
    }

    /// How many of each there are when nobody has any.
    pub fn limits(&self) -> [u64; N] {
        std::array::from_fn(|stock| self.stocks[stock].limit())
    }

    /// How many of each are taken.
    pub fn held(&self) -> [u64; N] {
        self.held
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Takes all of this, or puts `who` at the end of the line. Who stands in line already goes on standing there.
    pub fn take(&mut self, who: CreditWaiter, want: [u64; N]) -> Took {
        if let Some(stock) = (0..N).find(|&stock| want[stock] > self.stocks[stock].limit()) {
            return Took::Never { stock, limit: self.stocks[stock].limit() };
        }
        if self.line.iter().any(|(waiter, _)| *waiter == who) {
            return Took::Waits;
        }
        if self.line.is_empty() && self.take_all(want) {
            return Took::Now;
        }
        if self.line.len() >= self.line_max {
            return Took::Full { most: self.line_max };
        }
        self.line.push_back((who, want));
        Took::Waits
    }

    /// Gives this back, and says who has been served by it, in their order. Nothing changes if more comes back than is taken.
    pub fn give_back(&mut self, credits: [u64; N], served: &mut Vec<CreditWaiter>) -> Result<(), Unbalanced> {
        if let Some(stock) = (0..N).find(|&stock| credits[stock] > self.held[stock]) {
            return Err(Unbalanced::GivenTwice { stock, given: credits[stock], held: self.held[stock] });
        }
        for (stock, &count) in credits.iter().enumerate() {
            if let Err(overflow) = self.stocks[stock].give_back(count) {
                return Err(Unbalanced::Differs { stock, outstanding: overflow.outstanding, held: self.held[stock] });
            }
            self.held[stock] -= count;
        }
        self.serve(served);
        Ok(())
    }

    /// Takes a waiter that has given up out of the line; whether it was there. Those behind it may be served by that.
    pub fn leave(&mut self, who: CreditWaiter, served: &mut Vec<CreditWaiter>) -> bool {
        let Some(place) = self.line.iter().position(|(waiter, _)| *waiter == who) else { return false };
        self.line.remove(place);
        self.serve(served);
        true
    }

    /// Whether everything adds up and nobody waits for what is there.
    pub fn check(&self) -> Result<(), Unbalanced> {
        for (stock, credits) in self.stocks.iter().enumerate() {
            let (outstanding, held) = (credits.outstanding(), self.held[stock]);
            if outstanding != held {
                return Err(Unbalanced::Differs { stock, outstanding, held });
            }
        }
        match self.line.front() {
            Some((waiter, want)) if self.fits(want) => Err(Unbalanced::Slept(waiter.0)),
            _ => Ok(()),
        }
    }

    fn fits(&self, want: &[u64; N]) -> bool {
        want.iter().zip(&self.stocks).all(|(&count, stock)| count <= stock.available())
    }

    fn serve(&mut self, served: &mut Vec<CreditWaiter>) {
        while let Some(&(waiter, want)) = self.line.front()
            && self.take_all(want)
        {
            self.line.pop_front();
            served.push(waiter);
        }
    }

    /// Each stock is taken from in turn; what was taken before the one that is short goes back.
    fn take_all(&mut self, want: [u64; N]) -> bool {
        for (stock, &count) in want.iter().enumerate() {
            if self.stocks[stock].take(count).is_err() {
                for (taken, &count) in want.iter().enumerate().take(stock) {
                    self.stocks[taken].give_back(count).expect("it was taken a moment ago");
                }
                return false;
            }
        }
        for (held, count) in self.held.iter_mut().zip(want) {
            *held += count;
        }
        true
    }
}
