//! Shares one device's time between containers.
//!
//! An [`Arbiter`] decides, for one device, which container may use it now. It is pure policy: it has no clock, does no
//! I/O and starts no thread. Its caller passes in the time and the observations ([`Observation`]), and carries out the
//! returned commands ([`GateCommand`]). Tests do the same in virtual time. The arbiter uses only values and ordered
//! collections of the standard library; `clippy.toml` forbids the rest.
//!
//! # How time is shared
//!
//! * A **lease** is the right to launch work now. One container holds it: its gate is open, and others are closed.
//!   A lease lasts for a quantum ([`timing`]). It is renewed without a switch while no other container has the better
//!   claim, and handed back early when its holder has nothing more to do.
//! * After closing a gate the arbiter lets the work in flight **drain** before it opens the next one. If it knows well
//!   when the work ends, it opens the next gate a little earlier, so that the device does not stand empty. Work that is
//!   still there after [`timing::OVERRUN_MAX_NS`] no longer keeps out a container that would go first, and after
//!   [`timing::OVERRUN_LAST_NS`] no container at all: the next one is let in beside it. So a kernel that waits for a
//!   peer on another device cannot hold up that peer for ever.
//! * A container is **charged** by the clock, for the time in which it had work on the device (`charge`). While several
//!   containers have work there, the device switches between their processes, and the time is split accordingly. The
//!   charges of all containers together are the time in which the device was in use.
//! * **Weighted fair queueing** decides which container is next (`fair`). Each container's virtual time advances by its
//!   charges over its request, and the container with the least virtual time goes first. A long kernel that takes more
//!   than its lease leaves a debt, which its container pays back by waiting. So shares are exact in the long run,
//!   however long the kernels are.
//! * A container is let in as a **guest** beside a holder that pauses, if it pauses too (`guests`): the programs of
//!   both work on their hosts most of the time.
//! * A holder that does nothing while others wait **withholds** the device, unless guests use it. That time counts in
//!   its virtual time and against its request, except the first [`timing::WAKING_NS`] of a lease. It is not charged, and
//!   no limit counts it. So a container with short work and pauses, or with processes that are stopped, costs others
//!   only the time of the switches to it and back.
//! * A container's **limit** is a token bucket (`bucket`). Between request and limit a container uses what others
//!   leave.
//! * **Priority** decides the order of containers within their requests, and the order of those that want time that is
//!   left over. It never takes what another container has requested.
//! * A container with **several devices** gets its leases on them together, and gives them back together. Each device's
//!   arbiter sees the container's state on the others ([`Siblings`]), and publishes its state here ([`GangState`]). See
//!   `gang`.
//! * A container that is alone on the device and not limited runs **free**: its gate stays open, and nothing is
//!   observed or charged.
//!
//! # What counts as used
//!
//! Work is seen at polls, about a millisecond apart while a gate is open. The beginning of work is known exactly
//! ([`Observation::busy_since_ns`]). Its end lies between two polls, and is assumed to be in the middle. A pause of the
//! holder that is shorter than a poll interval counts as used, because the device was kept for it. Work without a
//! marker behind it is not seen at all; the shim must leave no significant work without a marker when a thread stops
//! launching.
//!
//! # Invariants
//!
//! * At most one container holds the lease. Only the gates of guests are open beside its gate. A guest is let in when
//!   no work is on the device, and has to leave when its work has met that of others for [`timing::MEETING_MAX_NS`].
//! * A gate is opened only when all other work is done, has overrun, is known to end within [`timing::HANDOVER_NS`], or
//!   may wait for work that is launched then. A container without processes has no lease.
//! * Between two polls all containers together are charged at most the time between them, except for work that has
//!   outlasted [`timing::OVERDUE_NS`]: its container pays for it, and the others do not pay less because of it.
//! * A container that waits, is within its request and has budget is let in within finite time, whatever the priority
//!   of the others: after at most their leases and overruns until its virtual time is the least.
//! * Over any time `t` a container is charged at most the sum of: `limit * t`; [`timing::BURST_NS`], or half a lease of
//!   its own if its kernels are so long that this is more; `limit *` [`timing::HELD_OFF_MAX_NS`] if others kept it
//!   waiting before; and the work that was in flight when its gate closed.
//! * A container with several devices costs the others at most [`timing::GANG_CREDIT_NS`] for being let in together,
//!   and [`timing::OVERRUN_MAX_NS`] for letting its work end. Its virtual time pays for both.
//! * No decision depends on a floating-point number, on the order of a hash, or on the order of the observations.
//! * Observations come from memory that containers can write: no value in them can cause a panic, or an endless wait of
//!   another container.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::print_stdout, clippy::print_stderr)]

mod arbiter;
mod bucket;
mod charge;
mod container;
mod fair;
mod gang;
mod lease;
mod pauses;
pub mod timing;
mod usage;

pub use arbiter::{Arbiter, GateCommand, PollOutcome};
pub use container::{ContainerId, Observation, Share};
pub use gang::{GangState, Siblings};
pub use usage::{Usage, WAIT_BOUNDS_NS};
