//! The device time of several users over time, by the device's own account.

use aliquot_fake_machine::{Machine, now_ns, sleep_until_ns};
use aliquot_harness::{Witness, wait};

/// Time between two readings: a tenth of the shortest window that is judged.
const INTERVAL_NS: u64 = 100_000_000;
const LOOKS_PER_SECOND: usize = 10;

/// A device and its users. Each user is a set of process ids.
pub(super) struct Users<'a> {
    pub(super) machine: &'a Machine,
    pub(super) device: usize,
    pub(super) pids: Vec<Vec<u32>>,
}

/// Readings of a device's account over time.
pub(super) struct Recording {
    looks: Vec<Look>,
}

/// One reading.
struct Look {
    at_ns: u64,
    /// Device time that each user had used until then.
    busy_ns: Vec<u64>,
    /// Time for which the machine had stood still until then.
    lost_ns: u64,
}

impl Users<'_> {
    /// Device time that each user has used so far.
    pub(super) fn busy_ns(&self) -> Vec<u64> {
        let used = self.machine.device_use(self.device).processes;
        let of = |pids: &Vec<u32>| used.iter().filter(|used| pids.contains(&used.pid)).map(|used| used.busy_ns).sum();
        self.pids.iter().map(of).collect()
    }

    fn look(&self, witness: &Witness) -> Look {
        Look { at_ns: now_ns(), busy_ns: self.busy_ns(), lost_ns: witness.lost_ns() }
    }
}

impl Recording {
    /// Waits for the users' first use of the device, and records for `duration_ns` from then on.
    pub(super) fn from_first_use(users: &Users<'_>, witness: &Witness, duration_ns: u64) -> Recording {
        let lost_ns = witness.lost_ns();
        let at_ns = wait::until("the device is used", || {
            let busy_ns: u64 = users.busy_ns().iter().sum();
            // Assumes that the device was used without a pause until now.
            (busy_ns > 0).then(|| now_ns() - busy_ns)
        });
        Recording::go_on(users, witness, Look { at_ns, busy_ns: vec![0; users.pids.len()], lost_ns }, duration_ns)
    }

    /// Records for `duration_ns` from now on.
    pub(super) fn from_now(users: &Users<'_>, witness: &Witness, duration_ns: u64) -> Recording {
        Recording::go_on(users, witness, users.look(witness), duration_ns)
    }

    fn go_on(users: &Users<'_>, witness: &Witness, first: Look, duration_ns: u64) -> Recording {
        let start_ns = first.at_ns;
        let mut looks = vec![first];
        for number in 1..=duration_ns / INTERVAL_NS {
            sleep_until_ns(start_ns + number * INTERVAL_NS);
            looks.push(users.look(witness));
        }
        Recording { looks }
    }

    /// A user's share of the whole time, in percent.
    pub(super) fn share(&self, user: usize) -> f64 {
        self.between(user, 0, self.looks.len() - 1)
    }

    /// A user's share of the first second, in percent.
    pub(super) fn first_second(&self, user: usize) -> f64 {
        self.between(user, 0, LOOKS_PER_SECOND.min(self.looks.len() - 1))
    }

    /// A user's share in the second in which it was farthest from `wanted`, of all seconds that begin at a reading.
    pub(super) fn worst_second(&self, user: usize, wanted: f64) -> f64 {
        let seconds = (LOOKS_PER_SECOND..self.looks.len()).map(|end| self.between(user, end - LOOKS_PER_SECOND, end));
        seconds.max_by(|a, b| (a - wanted).abs().total_cmp(&(b - wanted).abs())).unwrap_or_else(|| self.share(user))
    }

    /// The share of all users together, in percent.
    pub(super) fn total(&self) -> f64 {
        (0..self.looks[0].busy_ns.len()).map(|user| self.share(user)).sum()
    }

    /// Time for which the machine stood still during the recording.
    pub(super) fn lost_ms(&self) -> f64 {
        let [first, .., last] = self.looks.as_slice() else { return 0.0 };
        (last.lost_ns - first.lost_ns) as f64 / 1e6
    }

    fn between(&self, user: usize, from: usize, to: usize) -> f64 {
        let (from, to) = (&self.looks[from], &self.looks[to]);
        (to.busy_ns[user] - from.busy_ns[user]) as f64 * 100.0 / (to.at_ns - from.at_ns) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording of a user with `busy` percent of each tenth of a second.
    fn recording(busy: &[u64]) -> Recording {
        let mut used_ns = 0;
        let mut look = |number: usize| {
            used_ns += number.checked_sub(1).map_or(0, |before| busy[before] * INTERVAL_NS / 100);
            Look { at_ns: 7 + number as u64 * INTERVAL_NS, busy_ns: vec![used_ns], lost_ns: number as u64 * 1_000_000 }
        };
        Recording { looks: (0..=busy.len()).map(&mut look).collect() }
    }

    #[test]
    fn a_share_is_a_part_of_the_whole_time() {
        let steady = recording(&[30; 30]);
        assert_eq!((steady.share(0), steady.first_second(0), steady.worst_second(0, 30.0)), (30.0, 30.0, 30.0));
        assert_eq!((steady.total(), steady.lost_ms()), (30.0, 30.0));
    }

    #[test]
    fn the_worst_second_is_the_farthest_off_on_either_side() {
        let mut busy = vec![30; 30];
        busy[5] = 100;
        busy[20..30].fill(18);
        assert_eq!(recording(&busy).worst_second(0, 30.0), 18.0);
        busy[6] = 100;
        assert_eq!(recording(&busy).worst_second(0, 30.0), 44.0);
    }
}
