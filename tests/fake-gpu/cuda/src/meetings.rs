//! Kernels that wait for a kernel on another device, as in collective communication.

use crate::Done;
use crate::launches::Arguments;
use crate::memory_operations::{ValueWait, ValueWrite};

/// The work of a kernel whose name begins with `rendezvous`, as described in `tests/fake-gpu/README.md`.
pub(crate) struct Meeting {
    arrival: ValueWrite,
    peer: ValueWait,
    /// The kernel's duration from when both kernels have arrived.
    pub(crate) duration_ns: u64,
}

impl Meeting {
    /// Reads the parameters: the address of its own counter, the address of the peer's, the number to write and to wait
    /// for, and the duration.
    pub(crate) fn of(arguments: &Arguments) -> Done<Meeting> {
        let [own, peer, number, duration_ns] = arguments.words()?;
        Ok(Meeting {
            arrival: ValueWrite::by_kernel(own, number)?,
            peer: ValueWait::by_kernel(peer, number)?,
            duration_ns,
        })
    }

    /// Writes this kernel's arrival, and returns whether the peer has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.arrival.carry_out();
        self.peer.is_satisfied()
    }
}
