//! How the processes of a container keep to its limit of device time together while no manager shares the device.
//!
//! All processes of a container pay into one account. If each process had its own budget, N processes would have N
//! limits. If there were a budget per period, the part of a kernel that exceeds the period would be free.
//!
//! Each process pays for the time in which it sees work of the container on the device. Two words of the device's
//! [`Account`] hold the sum of these payments:
//!
//! * [`Account::charged_until_ns`]: time up to here has been paid for. A paying process moves this word forward first,
//!   so that time in which several processes had work on the device, or which several of them saw, is paid once.
//! * [`Account::paced_until_ns`]: the time at which the container has earned the time that it used, at the rate of its
//!   limit. Each nanosecond used moves it forward by 100 / `limit_percent` nanoseconds. Nothing is launched before that
//!   time. If a long kernel takes more than the container's share, the excess is a debt, and the container waits for it
//!   afterwards, however long the kernel was.
//!
//! There is no lock. A process that is killed between its writes to the two words leaves one payment out. A process
//! that is killed while it [holds](hold) the others back leaves them held back for a moment. The container can write
//! both words, but they affect only itself, and no value in them makes it wait longer than it takes to earn
//! [`DEBT_MAX_NS`].

use crate::atomic::{AtomicU64, Ordering};
use crate::region::Account;

/// The most device time that can be owed.
pub const DEBT_MAX_NS: u64 = 2_000_000_000;
/// Time without work whose earnings a container keeps, which makes up for threads that wake up late.
pub const SAVED_MAX_NS: u64 = 5_000_000;
/// Device time that a launch takes in advance, for the time from its admission until other processes can see it.
pub const HELD_NS: u64 = 100_000;
/// A stored time further ahead of the clock than this was not written from the clock.
const CLOCK_ERROR_MAX_NS: u64 = 1_000_000_000;

/// How long it takes to earn `used_ns` at `limit_percent`, in nanoseconds.
#[must_use]
pub fn earning_ns(used_ns: u64, limit_percent: u32) -> u64 {
    used_ns.saturating_mul(100) / u64::from(limit_percent.clamp(1, 100))
}

/// Pays for the part of the time from `from_ns` to `until_ns` that has not been paid for, and returns its length in
/// nanoseconds. `until_ns` is not after `now_ns`.
pub fn charge(account: &Account, from_ns: u64, until_ns: u64, now_ns: u64, limit_percent: u32) -> u64 {
    let mut charged_ns = account.charged_until_ns.load(Ordering::Relaxed);
    let start_ns = loop {
        let is_sound = charged_ns <= now_ns.saturating_add(CLOCK_ERROR_MAX_NS);
        let start_ns = if is_sound { from_ns.max(charged_ns) } else { from_ns };
        if start_ns >= until_ns {
            return 0;
        }
        match replace(&account.charged_until_ns, charged_ns, until_ns) {
            Ok(()) => break start_ns,
            Err(now) => charged_ns = now,
        }
    };
    let used_ns = until_ns - start_ns;
    let mut paced_ns = account.paced_until_ns.load(Ordering::Relaxed);
    loop {
        let earned_ns = paced_ns.max(start_ns.saturating_sub(SAVED_MAX_NS));
        let after_ns =
            earned_ns.saturating_add(earning_ns(used_ns, limit_percent)).min(latest_ns(now_ns, limit_percent));
        match replace(&account.paced_until_ns, paced_ns, after_ns) {
            Ok(()) => return used_ns,
            Err(now) => paced_ns = now,
        }
    }
}

/// Admits one launch at `now_ns` and holds back all others of the container until this launch can be seen on the
/// device. The caller then passes the result to [`release`]. The launch pays from its admission on: otherwise a thread
/// that is stopped between its launch and its marker would get its work for free.
///
/// # Errors
/// The number of nanoseconds that the launch must wait.
pub fn hold(account: &Account, now_ns: u64, limit_percent: u32) -> Result<u64, u64> {
    let held_ns = earning_ns(HELD_NS, limit_percent);
    let mut paced_ns = account.paced_until_ns.load(Ordering::Relaxed);
    loop {
        let sound_ns = paced_ns.min(latest_ns(now_ns, limit_percent));
        if sound_ns > now_ns {
            // Store the corrected value: otherwise a value that is too great would stay ahead of the clock for ever.
            if sound_ns < paced_ns
                && let Err(now) = replace(&account.paced_until_ns, paced_ns, sound_ns)
            {
                paced_ns = now;
                continue;
            }
            return Err(sound_ns - now_ns);
        }
        let after_ns = paced_ns.max(now_ns.saturating_sub(SAVED_MAX_NS)).saturating_add(held_ns);
        match replace(&account.paced_until_ns, paced_ns, after_ns) {
            Ok(()) => return Ok(held_ns),
            Err(now) => paced_ns = now,
        }
    }
}

/// Gives back the time that [`hold`] took. From now on the launch pays as its work is seen.
pub fn release(account: &Account, held_ns: u64) {
    let mut paced_ns = account.paced_until_ns.load(Ordering::Relaxed);
    while let Err(now) = replace(&account.paced_until_ns, paced_ns, paced_ns.saturating_sub(held_ns)) {
        paced_ns = now;
    }
}

/// The greatest [`Account::paced_until_ns`] that a debt of [`DEBT_MAX_NS`] can produce.
fn latest_ns(now_ns: u64, limit_percent: u32) -> u64 {
    now_ns.saturating_add(earning_ns(DEBT_MAX_NS, limit_percent))
}

fn replace(word: &AtomicU64, before: u64, after: u64) -> Result<(), u64> {
    // Relaxed: no other memory is published through these words.
    word.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed).map(|_| ())
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    /// The clock at the begin of each test: not near zero, as it has run for a while.
    const START_NS: u64 = 1_000_000 * MS;

    fn account() -> Account {
        // SAFETY: an account is integers and atomics of them: all bytes zero is a valid one.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn time_that_several_processes_saw_is_paid_once() {
        let account = account();
        let now_ns = START_NS + 100 * MS;
        assert_eq!(charge(&account, START_NS, START_NS + 10 * MS, now_ns, 50), 10 * MS);
        assert_eq!(charge(&account, START_NS + 4 * MS, START_NS + 12 * MS, now_ns, 50), 2 * MS);
        assert_eq!(charge(&account, START_NS, START_NS + 12 * MS, now_ns, 50), 0);
    }

    #[test]
    fn the_debt_of_a_long_kernel_is_waited_for_afterwards() {
        let account = account();
        assert_eq!(hold(&account, START_NS, 20).map(|held_ns| release(&account, held_ns)), Ok(()));
        let end_ns = START_NS + 200 * MS;
        charge(&account, START_NS, end_ns, end_ns, 20);
        let wait_ns = hold(&account, end_ns, 20).unwrap_err();
        assert_eq!(wait_ns, 800 * MS - SAVED_MAX_NS);
        assert!(hold(&account, end_ns + wait_ns, 20).is_ok());
    }

    #[test]
    fn a_held_launch_holds_the_next_one_back() {
        let account = account();
        charge(&account, START_NS, START_NS + MS, START_NS + MS, 10);
        let now_ns = START_NS + MS + hold(&account, START_NS + MS, 10).unwrap_err();
        let held_ns = hold(&account, now_ns, 10).unwrap();
        assert_eq!(hold(&account, now_ns, 10), Err(held_ns));
        release(&account, held_ns);
        assert_eq!(hold(&account, now_ns, 10), Ok(held_ns));
    }

    #[test]
    fn any_value_in_the_account_leads_to_a_wait_within_bounds() {
        for (charged_ns, paced_ns) in [(u64::MAX, u64::MAX), (START_NS * 3, 7), (0, u64::MAX), (u64::MAX, 0)] {
            let account = account();
            account.charged_until_ns.store(charged_ns, Ordering::Relaxed);
            account.paced_until_ns.store(paced_ns, Ordering::Relaxed);
            let end_ns = START_NS + 100 * MS;
            assert_eq!(charge(&account, START_NS, end_ns, end_ns, 10), 100 * MS);
            let mut now_ns = end_ns;
            while hold(&account, now_ns, 10).is_err() {
                now_ns += MS;
            }
            let waited_ns = now_ns - end_ns;
            assert!((800 * MS..=earning_ns(DEBT_MAX_NS, 10)).contains(&waited_ns), "{waited_ns} ns");
            release(&account, u64::MAX);
        }
    }

    proptest! {
        /// Kernels of random lengths. The launching thread wakes up late after a wait by a random time.
        #[test]
        fn the_share_is_the_limit_for_kernels_of_any_length(
            limit_percent in 1_u32..=100,
            kernels in proptest::collection::vec((50_000_u64..200 * MS, 0_u64..3 * MS), 50..300),
        ) {
            let account = account();
            let (mut now_ns, mut used_ns) = (START_NS, 0);
            for &(kernel_ns, late_ns) in &kernels {
                while let Err(wait_ns) = hold(&account, now_ns, limit_percent) {
                    now_ns += wait_ns + late_ns;
                }
                release(&account, earning_ns(HELD_NS, limit_percent));
                // Two processes see the kernel: one in the middle of it, one when it is done.
                let (middle_ns, end_ns) = (now_ns + kernel_ns / 2, now_ns + kernel_ns);
                charge(&account, now_ns, middle_ns, middle_ns, limit_percent);
                charge(&account, now_ns, end_ns, end_ns, limit_percent);
                now_ns = end_ns;
                used_ns += kernel_ns;
            }
            let wait_ns = hold(&account, now_ns, limit_percent).err().unwrap_or(0);
            let (elapsed_ns, earned_ns) = (now_ns + wait_ns - START_NS, earning_ns(used_ns, limit_percent));
            prop_assert!(earned_ns <= elapsed_ns + 2 * SAVED_MAX_NS, "{earned_ns} {elapsed_ns}");
            prop_assert!(elapsed_ns <= earned_ns + 2 * SAVED_MAX_NS, "{earned_ns} {elapsed_ns}");
        }
    }
}
