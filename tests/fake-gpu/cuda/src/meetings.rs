//! Kernels that wait for a kernel on another device, as those of collective communication do.

use crate::Done;
use crate::launches::Arguments;
use crate::memory_operations::{ValueWait, ValueWrite};

/// What a kernel does whose name begins with `rendezvous`: the rule of the machine's documentation.
pub(crate) struct Meeting {
    arrival: ValueWrite,
    peer: ValueWait,
    /// How long it takes once both are there.
    pub(crate) duration_ns: u64,
}

impl Meeting {
    /// Reads the parameters: its own counter's address, the peer's, the number to write and to wait for, and the
    /// duration.
    pub(crate) fn of(arguments: &Arguments) -> Done<Meeting> {
        let [own, peer, number, duration_ns] = arguments.words()?;
        Ok(Meeting {
            arrival: ValueWrite::by_kernel(own, number)?,
            peer: ValueWait::by_kernel(peer, number)?,
            duration_ns,
        })
    }

    /// Arrives, and tells whether the peer has.
    pub(crate) fn is_complete(&self) -> bool {
        self.arrival.carry_out();
        self.peer.is_satisfied()
    }
}
