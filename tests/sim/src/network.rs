//! Listeners and streams in memory, delivery by seed.
//!
//! A stream on one host behaves as a Unix one does: descriptors travel with the first byte of what they were sent
//! with and are not read together with bytes sent before them, what was sent before a close still
//! arrives, and closing over unread bytes resets the other side. Beyond that it is as unkind as the
//! system may be: any send may be held up or cut short, and what was sent at once arrives in pieces.
//! A stream between hosts carries no descriptors, and what was sent over a link that is cut arrives when it passes again.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use penstock::env::{Address, Credentials};

use crate::faults::Death;
use crate::links::Links;
use crate::random::Random;
use crate::trace::{Spoken, What};

/// Pieces in which one send arrives at most, besides those that drip in byte by byte.
const PIECES_MAX: usize = 4;
/// Bytes that drip in one by one, where they do: a header and a little more.
const DRIP_BYTES: usize = 24;
/// One send in so many is held up, cut short, or drips in.
const HELD_ONCE_IN: usize = 12;
const SHORT_ONCE_IN: usize = 6;
const DRIP_ONCE_IN: usize = 10;

/// Pieces that wait on a link between hosts at most, in one direction of a stream: a full buffer takes no more.
const WAITING_MAX: usize = 1024;

/// The first of the ports that are given to who asks for any.
const PORT_FIRST: u16 = 20_000;

/// One end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndId {
    wire: u64,
    side: usize,
}

impl EndId {
    fn other(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}

#[derive(Debug)]
enum Letter {
    Piece {
        bytes: Vec<u8>,
        read: usize,
        tokens: Vec<OwnedFd>,
    },
    /// The other side has closed, and whether it left something unread.
    End {
        reset: bool,
    },
}

/// Who listens, calls, or is at one end of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Party {
    pub(crate) engine: usize,
    pub(crate) host: u64,
    /// The address of that host.
    pub(crate) ip: IpAddr,
    pub(crate) who: Credentials,
}

#[derive(Debug)]
struct End {
    party: Party,
    /// The address at the other end, if that is met over the network.
    remote: Option<SocketAddr>,
    /// On the way to this end.
    in_flight: VecDeque<Letter>,
    /// Here, to be read.
    arrived: VecDeque<Letter>,
    spoken: Spoken,
    is_closed: bool,
    /// The stream broke: both ends know at once.
    is_broken: bool,
    /// It is gone and nobody was told: what is sent to it goes nowhere.
    is_silent: bool,
}

#[derive(Debug)]
struct Listening {
    address: Address,
    party: Party,
    /// Ends that wait to be accepted.
    backlog: VecDeque<EndId>,
}

/// Every listener and stream of a world.
#[derive(Debug, Default)]
pub(crate) struct Network {
    next: u64,
    listeners: BTreeMap<u64, Listening>,
    ends: BTreeMap<EndId, End>,
}

impl Network {
    /// Listens. Answers the listener, and the address that other hosts reach it at.
    pub(crate) fn listen(&mut self, address: &Address, party: Party) -> io::Result<(u64, Option<SocketAddr>)> {
        self.next += 1;
        let address = match address {
            Address::Tcp(wanted) if wanted.port() == 0 => {
                let port = PORT_FIRST.wrapping_add(self.next as u16);
                Address::Tcp(SocketAddr::new(wanted.ip(), port))
            }
            other => other.clone(),
        };
        if self.listeners.values().any(|listening| listening.address == address) {
            return Err(io::Error::new(ErrorKind::AddrInUse, "another live engine has this name"));
        }
        let reached = match address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        };
        self.listeners.insert(self.next, Listening { address, party, backlog: VecDeque::new() });
        Ok((self.next, reached))
    }

    /// Nobody listens any more; whoever was not accepted yet is reset.
    pub(crate) fn close_listener(&mut self, id: u64) {
        let Some(listening) = self.listeners.remove(&id) else { return };
        listening.backlog.into_iter().for_each(|end| self.close(end));
    }

    pub(crate) fn connect(&mut self, address: &Address, party: Party) -> io::Result<EndId> {
        let Some(listening) = self.listeners.values_mut().find(|listening| listening.address == *address) else {
            return Err(io::Error::new(ErrorKind::ConnectionRefused, "nobody listens there"));
        };
        self.next += 1;
        let (here, there) = (EndId { wire: self.next, side: 0 }, EndId { wire: self.next, side: 1 });
        listening.backlog.push_back(there);
        let (to, from) = match address {
            Address::Unix(_) => (None, None),
            Address::Tcp(address) => {
                (Some(*address), Some(SocketAddr::new(party.ip, PORT_FIRST.wrapping_add(self.next as u16))))
            }
        };
        let far = listening.party;
        self.ends.insert(here, End::new(party, to));
        self.ends.insert(there, End::new(far, from));
        Ok(here)
    }

    /// The next end to be accepted, as far as calls get through.
    pub(crate) fn accept(&mut self, id: u64, links: &Links) -> Option<EndId> {
        let place = self.acceptable(id, links)?;
        self.listeners.get_mut(&id)?.backlog.remove(place)
    }

    /// A call gets through when both directions pass.
    fn acceptable(&self, id: u64, links: &Links) -> Option<usize> {
        let backlog = &self.listeners.get(&id)?.backlog;
        backlog.iter().position(|end| self.passes(*end, links) && self.passes(end.other(), links))
    }

    /// Whether what is on its way to this end gets there.
    fn passes(&self, id: EndId, links: &Links) -> bool {
        match (self.ends.get(&id), self.ends.get(&id.other())) {
            (Some(to), Some(from)) => links.passes(from.party.host, to.party.host),
            _ => true,
        }
    }

    /// Who is at the other end, where the system knows.
    pub(crate) fn other_credentials(&self, id: EndId) -> io::Result<Credentials> {
        if self.ends[&id].remote.is_some() {
            return Err(io::Error::new(ErrorKind::Unsupported, "nobody knows the user on another host"));
        }
        Ok(self.ends[&id.other()].party.who)
    }

    /// The address at the other end, if that is on another host.
    pub(crate) fn remote(&self, id: EndId) -> Option<SocketAddr> {
        self.ends.get(&id)?.remote
    }

    /// Sends some of `bytes`, and says what was made out of them.
    pub(crate) fn send(
        &mut self,
        id: EndId,
        bytes: &[u8],
        tokens: &[BorrowedFd<'_>],
        random: &mut Random,
    ) -> io::Result<(usize, Vec<(What, u64)>)> {
        if self.ends[&id.other()].is_silent {
            return Ok((bytes.len(), Vec::new()));
        }
        if self.ends[&id].is_broken || self.ends[&id.other()].is_closed {
            // Whoever is told that the other side has closed can read all that it said before.
            let end = self.end(id);
            end.arrived.append(&mut end.in_flight);
            return Err(ErrorKind::BrokenPipe.into());
        }
        if bytes.is_empty() {
            return Ok((0, Vec::new()));
        }
        let is_full = self.ends[&id].remote.is_some() && self.ends[&id.other()].in_flight.len() >= WAITING_MAX;
        if is_full || random.once_in(HELD_ONCE_IN) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let tokens = tokens.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<Vec<_>>>()?;
        let taken = if random.once_in(SHORT_ONCE_IN) { 1 + random.below(bytes.len()) } else { bytes.len() };
        let said = match self.ends[&id].remote {
            Some(_) if !tokens.is_empty() => return Err(ErrorKind::InvalidInput.into()),
            Some(_) => vec![(What::Sealed, taken as u64)],
            None => self.end(id).spoken.hear(&bytes[..taken]),
        };
        let letters = cut(&bytes[..taken], tokens, random);
        self.end(id.other()).in_flight.extend(letters);
        Ok((taken, said))
    }

    /// Reads what has arrived.
    pub(crate) fn receive(&mut self, id: EndId, into: &mut [u8], tokens: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let arrived = &mut self.end(id).arrived;
        let mut filled = 0;
        while filled < into.len() {
            match arrived.front_mut() {
                None if filled == 0 => return Err(ErrorKind::WouldBlock.into()),
                Some(Letter::End { reset }) if filled == 0 => {
                    // A reset is told once; from then on it is the end.
                    return if std::mem::take(reset) { Err(ErrorKind::ConnectionReset.into()) } else { Ok(0) };
                }
                None | Some(Letter::End { .. }) => break,
                Some(Letter::Piece { tokens: come, .. }) if filled > 0 && !come.is_empty() => break,
                Some(Letter::Piece { bytes, read, tokens: come }) => {
                    tokens.append(come);
                    let count = (bytes.len() - *read).min(into.len() - filled);
                    into[filled..filled + count].copy_from_slice(&bytes[*read..*read + count]);
                    (*read, filled) = (*read + count, filled + count);
                    if *read == bytes.len() {
                        arrived.pop_front();
                    }
                }
            }
        }
        Ok(filled)
    }

    pub(crate) fn close(&mut self, id: EndId) {
        self.close_as(id, false);
    }

    fn close_as(&mut self, id: EndId, must_reset: bool) {
        let end = self.end(id);
        end.is_closed = true;
        let piece = |letter: &Letter| matches!(letter, Letter::Piece { .. });
        let reset = must_reset || end.arrived.iter().chain(&end.in_flight).any(piece);
        end.arrived.clear();
        end.in_flight.clear();
        let other = self.end(id.other());
        if !other.is_broken {
            other.in_flight.push_back(Letter::End { reset });
        }
        if other.is_closed {
            self.ends.remove(&id);
            self.ends.remove(&id.other());
        }
    }

    /// All listeners and streams of an engine are gone, whether others are told or not.
    pub(crate) fn crash(&mut self, engine: usize, death: Death) {
        let listening = self.listeners.iter().filter(|(_, listening)| listening.party.engine == engine);
        let listening: Vec<u64> = listening.map(|(&id, _)| id).collect();
        listening.into_iter().for_each(|id| self.close_listener(id));
        let its = self.ends.iter().filter(|(_, end)| end.party.engine == engine && !end.is_closed);
        let its: Vec<EndId> = its.map(|(&id, _)| id).collect();
        for id in its {
            match death {
                Death::Killed => self.close_as(id, true),
                Death::Silent if self.ends.get(&id.other()).is_none_or(|other| other.is_closed) => {
                    self.close_as(id, true);
                }
                Death::Silent => {
                    let end = self.end(id);
                    (end.is_closed, end.is_silent) = (true, true);
                    end.in_flight.clear();
                    end.arrived.clear();
                }
            }
        }
    }

    /// Breaks every stream.
    pub(crate) fn sever(&mut self) {
        self.ends.values_mut().for_each(End::sever);
    }

    /// Breaks every stream between two engines.
    pub(crate) fn sever_between(&mut self, one: usize, other: usize) {
        let engine = |id: &EndId| self.ends.get(id).map(|end| end.party.engine);
        let both = [Some(one), Some(other)];
        let is_theirs = |id: &EndId| both.contains(&engine(id)) && both.contains(&engine(&id.other()));
        let theirs: Vec<EndId> = self.ends.keys().copied().filter(is_theirs).collect();
        theirs.into_iter().for_each(|id| self.end(id).sever());
    }

    /// Ends to which something is on its way that gets there.
    pub(crate) fn awaiting(&self, links: &Links) -> Vec<EndId> {
        let awaiting = self.ends.iter().filter(|(_, end)| !end.in_flight.is_empty()).map(|(&id, _)| id);
        awaiting.filter(|id| self.passes(*id, links)).collect()
    }

    /// Lets the next letter arrive; answers at which engine.
    pub(crate) fn deliver(&mut self, id: EndId) -> usize {
        let end = self.end(id);
        end.arrived.extend(end.in_flight.pop_front());
        end.party.engine
    }

    pub(crate) fn can_accept(&self, id: u64, links: &Links) -> bool {
        self.acceptable(id, links).is_some()
    }

    pub(crate) fn can_read(&self, id: EndId) -> bool {
        self.ends.get(&id).is_some_and(|end| !end.arrived.is_empty())
    }

    /// Listeners and ends of streams that nobody has closed.
    pub(crate) fn open(&self) -> usize {
        self.listeners.len() + self.ends.values().filter(|end| !end.is_closed).count()
    }

    fn end(&mut self, id: EndId) -> &mut End {
        self.ends.get_mut(&id).expect("an end stays until both are closed")
    }
}

impl End {
    fn sever(&mut self) {
        if !std::mem::replace(&mut self.is_broken, true) {
            self.in_flight.clear();
            self.arrived.clear();
            self.arrived.push_back(Letter::End { reset: true });
        }
    }

    fn new(party: Party, remote: Option<SocketAddr>) -> Self {
        Self {
            party,
            remote,
            in_flight: VecDeque::new(),
            arrived: VecDeque::new(),
            spoken: Spoken::default(),
            is_closed: false,
            is_broken: false,
            is_silent: false,
        }
    }
}

/// Cuts what was sent at once into the pieces in which it arrives; descriptors go with the first.
fn cut(bytes: &[u8], tokens: Vec<OwnedFd>, random: &mut Random) -> Vec<Letter> {
    let mut places: Vec<usize> = match random.once_in(DRIP_ONCE_IN) {
        true => (1..bytes.len().min(DRIP_BYTES)).collect(),
        // How many pieces there are does not depend on the length, which an address in a frame may change.
        false => (0..random.below(PIECES_MAX)).map(|_| random.below(bytes.len())).collect(),
    };
    places.push(bytes.len());
    places.sort_unstable();
    let mut start = 0;
    let mut tokens = Some(tokens);
    let pieces = places.into_iter().filter_map(|end| {
        let bytes = bytes[start..end].to_vec();
        start = end;
        let is_some = !bytes.is_empty();
        is_some.then(|| Letter::Piece { bytes, read: 0, tokens: tokens.take().unwrap_or_default() })
    });
    pieces.collect()
}
