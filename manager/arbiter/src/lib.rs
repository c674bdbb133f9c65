//! How one device's time is shared between containers.
//!
//! An [`Arbiter`] decides, for one device, which container may use it now. It is a pure policy: it has no clock, does
//! no I/O and starts no thread. Its caller tells it the time and what it sees ([`Observation`]) and carries out what it
//! answers ([`Action`]); a test does the same in virtual time.
//!
//! # How time is shared
//!
//! * A **lease** is the right to launch work now. One container holds it; its gate is open, all others are closed. A lease
//!   lasts for a quantum ([`timing`]), is renewed without a switch while nobody else has the better claim, and is
//!   handed back early when its holder has nothing more to do.
//! * After closing a gate the arbiter lets the work in flight **drain** before it opens the next one. Work that is still there
//!   after [`timing::OVERRUN_MAX_NS`] no longer keeps out who has the better claim, and after [`timing::OVERRUN_LAST_NS`]
//!   nobody: the next container is let in beside it. So a kernel that waits for a peer on another device cannot hold up that
//!   peer for ever.
//! * A container is **charged** by the clock, for the time in which it had work on the device (`charge`). While
//!   several have work there, the device switches between their processes, and the time is split accordingly: what is
//!   charged to all containers together is the time in which the device was in use.
//! * Who is next is decided by **weighted fair queueing** (`fair`): each container's virtual time advances by what it is
//!   charged over its request, and the least goes first. What a long kernel takes beyond its lease is debt that
//!   is paid back by waiting, so shares are exact in the long run whatever the kernels' lengths.
//! * A container's **limit** is a token bucket (`bucket`). Between request and limit a container uses what others leave.
//! * **Priority** decides who goes first among containers within their requests, and who gets what is left over. It takes
//!   from nobody what they requested.
//! * A container with **several devices** gets its leases on them together, and gives them back together: each device's arbiter
//!   sees how the container stands on the others ([`Siblings`]) and says how it stands here ([`Turn`]). See `gang`.
//! * A container that is alone on the device and not limited runs **free**: its gate stays open, nothing is observed or
//!   charged.
//!
//! # What counts as used
//!
//! Work is seen at polls, about a millisecond apart while a gate is open. The beginning of work is known exactly
//! ([`Observation::busy_since_ns`]); its end lies between two polls and is taken to be in the middle. A pause of the
//! holder that is shorter than a poll interval counts as used: the device was kept for it. Work without a marker behind
//! it is not seen at all: it is for the shim to leave none of account when a thread stops launching.
//!
//! # Invariants
//!
//! * At most one container's gate is open at any time.
//! * A gate is opened only when all other work is done or has overrun, or may wait for what is launched then; a container without
//!   processes has no lease.
//! * What is charged between two polls is never more than the time between them, all containers together, but for work that has
//!   outlasted [`timing::OVERDUE_NS`]: that pays its part, and nobody beside it pays less for it.
//! * Who waits and has budget is let in within finite time: at most the others' leases and overruns until its virtual time is
//!   the least.
//! * Over any time `t` a container is charged at most `limit * t`, plus [`timing::BURST_NS`] (or half a lease of its own,
//!   where its kernels are so long that this is more), plus the limit's part of [`timing::HELD_OFF_MAX_NS`] if others kept
//!   it waiting before, plus what was in flight when its gate closed.
//! * Of a container with several devices the others lose at most [`timing::GANG_CREDIT_NS`] to its being let in together, and
//!   [`timing::OVERRUN_MAX_NS`] to its work being let end; its virtual time pays for both.
//! * No decision depends on a floating-point number, on the order of a hash, or on the order of the observations.
//! * Observations come from memory that containers can write: no value in them can cause a panic or an endless wait of
//!   another container.

#![forbid(unsafe_code)]

mod arbiter;
mod bucket;
mod charge;
mod container;
mod fair;
mod gang;
mod lease;
pub mod timing;
mod usage;

pub use arbiter::{Action, Arbiter, Plan};
pub use container::{ContainerId, Observation, Share};
pub use gang::{Siblings, Turn};
pub use usage::{Usage, WAIT_BOUNDS_NS};
