//! The lengths of time that the policy works with.

/// Between two ticks of an open gate, and so between two polls at most while one is open.
pub const TICK_NS: u64 = 1_000_000;

/// Between two polls while a gate is open whose holder's leases are so short that a tick would measure them badly.
pub const SHORT_LEASE_POLL_NS: u64 = 250_000;

/// Between two polls while work drains, when it is about to be done.
pub const DRAIN_POLL_NS: u64 = 100_000;

/// The longest lease while others wait, drain included. Long, because every switch leaves the device empty for a
/// moment.
pub const QUANTUM_MAX_NS: u64 = 20_000_000;

/// The lease after which the holder gives way to a container that begins to wait after it had been idle.
pub const QUANTUM_WAKING_NS: u64 = 5_000_000;

/// The shortest lease, and the one after which the holder gives way to a container of a higher class.
pub const QUANTUM_MIN_NS: u64 = 2_000_000;

/// In this time each container that waits gets a lease, as far as kernels' lengths and shares allow: quanta are parts
/// of it.
pub const CYCLE_NS: u64 = 50_000_000;

/// A holder that has drained, has no waiting thread and submits nothing for this long hands its lease back.
pub const IDLE_GRACE_NS: u64 = 2_000_000;

/// The idle grace of a holder that in the past did not come back within it.
pub const IDLE_GRACE_MIN_NS: u64 = 500_000;

/// How long work in flight may keep out a container with a better claim to the device after its gate was closed.
pub const OVERRUN_MAX_NS: u64 = 100_000_000;

/// How long work in flight may keep out anybody after its gate was closed.
pub const OVERRUN_LAST_NS: u64 = 300_000_000;

/// Work that is still there so long after its gate was closed pays, but nobody else pays less because of it. It may be
/// a fault, a stopped process or a lie, and would loosen everybody's limit.
pub const OVERDUE_NS: u64 = 5_000_000_000;

/// How long after the gate was closed work in flight is as expected; what goes on longer is reported as overrun.
pub const OVERRUN_REPORTED_NS: u64 = 5_000_000;

/// Budget that a limited container must have before its gate is opened, so that leases are not slivers.
pub const BUDGET_OPEN_NS: u64 = 4_000_000;

/// Budget that a container can save up while it does not want the device.
pub const BURST_NS: u64 = 5_000_000;

/// A container that waits saves up its share of this much time, so that being kept waiting by others costs it nothing.
pub const HELD_OFF_MAX_NS: u64 = 1_000_000_000;

/// Longest lease or drain that the arbiter expects of a container, whatever it has seen.
pub const EXPECTED_MAX_NS: u64 = 500_000_000;

/// By how much device time a container with several devices may be ahead of the others on one of them, to be let in
/// there together with the rest.
pub const GANG_CREDIT_NS: u64 = QUANTUM_MAX_NS;

/// How long a container with several devices is held back on one of them until the others are ready. Meanwhile its
/// device is used by others.
pub const GANG_HOLD_MAX_NS: u64 = 300_000_000;

/// A container that has saved up so much on a device, or half of what it can, is let in there as if it had no other: to
/// be together costs nobody its share.
pub const GANG_OWED_NS: u64 = 150_000_000;

/// How long a device may be kept empty for a container whose other devices are about to be ready.
pub const GANG_GAP_NS: u64 = 2_000_000;

/// How long a device is kept empty after a lease, to see whether the container's work ends on its other devices, too.
pub const GANG_DRAIN_NS: u64 = 500_000;

/// How long work of a container with several devices may keep out, after its gate was closed, another such container
/// whose work on another device waits, too: they may wait for each other.
pub const GANG_STUCK_NS: u64 = 2_000_000;
