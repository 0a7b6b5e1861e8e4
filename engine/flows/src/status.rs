//! What an application sees of a transfer, on either side.

penstock_session::machine! {
    /// How far a transfer is. The number of its leg is data beside it, and each leg is told of by itself, so that no state has to change for
    /// a further leg to be seen.
    pub Status on StatusEvent {
        states {
            /// Not everybody has granted the first leg.
            Bootstrapping,
            /// There is room, and nothing to put there yet.
            WaitingForInput,
            /// Bytes move, or have moved.
            Transferring,
        }
        ends {
            /// Everything is there.
            Success,
            /// It has failed; what it has of bytes stays valid until it is let go.
            Failed,
        }
        events {
            /// Everybody has granted the first leg.
            AllGranted,
            /// The first bytes begin to move, or have come.
            Input,
            /// A leg is over.
            LegDone,
            /// Everything is there.
            Done,
            /// It has failed.
            Fault,
        }
        Bootstrapping { AllGranted => WaitingForInput, Input => Bootstrapping, Done => Success, Fault => Failed }
        WaitingForInput {
            AllGranted => WaitingForInput, Input => Transferring, Done => Success, Fault => Failed
        }
        Transferring {
            AllGranted => Transferring, Input => Transferring, LegDone => Transferring, Done => Success, Fault => Failed
        }
    }
}

impl Status {
    /// The number by which serving engines poll it: 0 is failed, 1 bootstrapping, 2 waiting for input, 3 transferring, 4 success.
    ///
    /// 3 says that bytes move or have come, and nothing of how many or which: what can be read is told by layers, legs and the tokens received.
    /// 0 comes as soon as a transfer fails, while its memory may still be touched; when that may be used again is told with the finished requests.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 0,
            Self::Bootstrapping => 1,
            Self::WaitingForInput => 2,
            Self::Transferring => 3,
            Self::Success => 4,
        }
    }

    /// Goes where the event leads, and says whether it may happen here.
    pub(crate) fn on(&mut self, event: StatusEvent) -> bool {
        match self.step(event) {
            penstock_session::machine::Step::Go(next) => *self = next,
            penstock_session::machine::Step::Stay => {}
            penstock_session::machine::Step::Refused => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_table_has_no_faults_and_ends_are_kept() {
        assert_eq!(Status::DECLARED.faults(), Vec::<String>::new());
        let mut status = Status::Bootstrapping;
        assert!(status.on(StatusEvent::Input) && status == Status::Bootstrapping);
        assert!(!status.on(StatusEvent::LegDone), "no leg is over before one began");
        for event in [StatusEvent::AllGranted, StatusEvent::Input, StatusEvent::LegDone, StatusEvent::Fault] {
            assert!(status.on(event));
        }
        assert!(status.on(StatusEvent::Done) && status == Status::Failed);
        let codes: Vec<u8> = Status::ALL.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [1, 2, 3, 4, 0]);
    }
}
