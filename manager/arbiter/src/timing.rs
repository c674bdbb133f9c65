//! The time constants of the policy.

/// Time between two ticks of an open gate, and so the maximum time between two polls while one is open.
pub const TICK_NS: u64 = 1_000_000;

/// Time between two polls while the holder's leases are too short to be measured well at each tick.
pub const SHORT_LEASE_POLL_NS: u64 = 250_000;

/// Minimum time between two polls while work drains, near its expected end.
pub const DRAIN_POLL_NS: u64 = 100_000;

/// The longest lease while others wait, drain included. Long, because every switch leaves the device empty for a
/// moment.
pub const QUANTUM_MAX_NS: u64 = 20_000_000;

/// The shortest lease among containers of one class, unless the longest is set shorter, and the time after which the
/// holder gives way to one of them that begins to wait after being idle. Shorter ones would be lost in the changes of
/// lease, each of which costs about 0.3 ms.
pub const QUANTUM_MIN_NS: u64 = 5_000_000;

/// The time after which the holder gives way to a container of a higher class. No lease need be shorter.
pub const QUANTUM_URGENT_NS: u64 = 2_000_000;

/// The time in which each waiting container gets a lease, as far as kernel lengths and shares allow. Quanta are parts
/// of it.
pub const CYCLE_NS: u64 = 50_000_000;

/// A holder that has drained, has no waiting thread and submits nothing for this long hands its lease back.
pub const IDLE_GRACE_NS: u64 = 2_000_000;

/// The holder's threads may take this long to wake up after the gate was opened. In a lease that is then used, this time
/// does not count as withheld: short leases have more of it than long ones, and that would distort the shares.
pub const WAKING_NS: u64 = 250_000;

/// The next gate is opened this long before the work of the last lease is expected to be done, if that is well known.
pub const HANDOVER_NS: u64 = 200_000;

/// The minimum idle grace. The grace of a holder that did not come back within it is halved, down to this.
pub const IDLE_GRACE_MIN_NS: u64 = 500_000;

/// After its gate was closed, a container's work in flight keeps out containers that would go first for this long.
pub const OVERRUN_MAX_NS: u64 = 100_000_000;

/// After its gate was closed, a container's work in flight keeps out all other containers for at most this long.
pub const OVERRUN_LAST_NS: u64 = 300_000_000;

/// Work that is still there this long after its gate was closed is charged, but others do not pay less because of it.
/// Such work may be a fault, a stopped process or a forgery, and would otherwise loosen every limit.
pub const OVERDUE_NS: u64 = 5_000_000_000;

/// Work in flight may take this long after the gate was closed; the excess is reported as overrun.
pub const OVERRUN_REPORTED_NS: u64 = 5_000_000;

/// Budget that a limited container needs before its gate is opened, so that leases do not become too short.
///
/// Several processes of one container lose device time to changes between them, and most of it where a lease begins and
/// ends, because there a process has too little queued to fill its turn. Four processes under a limit of 50 % do 96 % of
/// half of what they do without slices; with 16 and 32 ms instead of 4 they do 97 and 98 % (`aliquot-bench
/// hardware-like`). But the container would also pause for that long, and at a limit of 10 % for nine times as long.
pub const BUDGET_OPEN_NS: u64 = 4_000_000;

/// Budget that a container can save while it does not want the device.
pub const BURST_NS: u64 = 5_000_000;

/// A container that waits can save its share of this much time, so that being kept waiting by others costs it nothing.
pub const HELD_OFF_MAX_NS: u64 = 1_000_000_000;

/// Upper bound of the lease and drain that the arbiter expects of a container.
pub const EXPECTED_MAX_NS: u64 = 500_000_000;

/// How far, in device time, a container with several devices may be ahead of the others on one device and still be let
/// in there together with its other devices.
pub const GANG_CREDIT_NS: u64 = QUANTUM_MAX_NS;

/// How long a container with several devices is held back on one of them until the others are ready. Other containers
/// use the device in the meantime.
pub const GANG_HOLD_MAX_NS: u64 = 300_000_000;

/// A container that has saved this much on a device, or half of the maximum, is let in there as if it had no other
/// device: leases that begin together must not cost it its share.
pub const GANG_OWED_NS: u64 = 150_000_000;

/// How long a device may be kept empty for a container whose other devices are about to be ready.
pub const GANG_GAP_NS: u64 = 2_000_000;

/// How long a device is kept empty after a lease, to see whether the container's work ends on its other devices too.
pub const GANG_DRAIN_NS: u64 = 500_000;

/// How long the work of a container with several devices may keep out another such container after its gate was closed,
/// if that one also has work waiting on another device: the two may wait for each other.
pub const GANG_STUCK_NS: u64 = 2_000_000;

/// A container pauses if it has had no work for this long. Shorter pauses are no use to others: to see one, to open a
/// gate and to wake up takes as long.
pub const PAUSE_NS: u64 = 150_000;

/// Time between two polls while containers are let in beside the holder, or could be.
pub const GUEST_POLL_NS: u64 = 250_000;

/// A container is let in beside the holder only if its work ends this soon after its gate was closed. That of a busy
/// container takes about as long as the shim lets work queue up: 4 ms.
pub const GUEST_DRAIN_MAX_NS: u64 = 1_000_000;

/// A guest leaves when its work has met that of others for this long. If this were shorter, guests would leave although
/// the device can serve all of them. If it were longer, those that happen to stay would get more than their shares.
pub const MEETING_MAX_NS: u64 = 1_000_000;

/// A guest leaves when it has submitted nothing for this long. An idle guest costs nothing but polls.
pub const GUEST_GRACE_NS: u64 = 20_000_000;
