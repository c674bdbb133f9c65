//! Counts arriving claims, to expect the work to come.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::state::usage::decayed;
use crate::vocabulary::dump::DumpedMixCounter;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::{Bytes, DeviceCore};
use crate::vocabulary::request::{PlacementRules, Request};

/// The weight of one task at its arrival.
const TASK: u64 = 1 << 20;
/// Counts decay in steps of a half-life divided by this.
const STEPS: u64 = 64;
/// The most different requests that are counted; those of least weight are forgotten first.
const REQUESTS_MAX: usize = 1024;
/// The most different requests in a mix: those with the greatest demand for device time.
const MIX_REQUESTS_MAX: usize = 128;
/// Parts of devices are rounded up to a multiple of this many thousandths: to a whole percent.
const CORE_STEP: u32 = 10;
/// The number of tasks that must have come before a mix is given.
const TASKS_MIN: u64 = 64;
/// A new mix is given when at least this part of the demand for devices is for other requests, in thousandths.
const CHANGED_PER_MILLE: u128 = 100;
/// Mixes count tasks in units of a task divided by this, so that half a task does not count as none.
const PART: u64 = 16;

/// Counts what claims ask for as they come. The weight of each claim halves with each half-life. The same claims at the
/// same times give the same counts.
#[derive(Clone, Debug)]
pub struct MixCounter {
    half_life_ms: u64,
    /// The time up to which the counts have decayed, in milliseconds.
    decayed_ms: u64,
    counts: BTreeMap<Request, Count>,
    /// The weight of the tasks that have come since the last mix was given.
    news: u64,
    given: Option<Mix>,
    /// Whether the counts make a mix that hardly differs from the given one. Unknown after each change of the counts.
    is_as_given: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Count {
    weight: u64,
    /// The greatest node memory that such tasks asked for.
    memory: Bytes,
}

impl MixCounter {
    /// A counter that has counted nothing. A half-life of 0 counts as a millisecond.
    #[must_use]
    pub fn new(half_life_ms: u64, now_ms: u64) -> Self {
        let half_life_ms = half_life_ms.max(1);
        Self { half_life_ms, decayed_ms: now_ms, counts: BTreeMap::new(), news: 0, given: None, is_as_given: false }
    }

    /// Counts a task that comes now. If time runs backwards, no time has passed.
    pub fn note(&mut self, request: &Request, now_ms: u64) {
        self.decay(now_ms);
        self.news = self.news.saturating_add(TASK);
        self.count(request, TASK);
        if self.counts.len() > REQUESTS_MAX {
            self.forget_lightest();
        }
    }

    /// The new mix. `None` until enough tasks have come, and if their requests hardly differ from the last mix that was
    /// given.
    pub fn mix(&mut self, now_ms: u64) -> Option<Mix> {
        self.decay(now_ms);
        let all = self.counts.values().fold(0_u64, |sum, count| sum.saturating_add(count.weight));
        // At least an eighth of the weight must be new. Otherwise chance would look like a change, and each change
        // makes the policy compute all bids again.
        if all < TASKS_MIN * TASK || self.news < all / 8 || self.is_as_given {
            return None;
        }
        let mix = self.heaviest();
        if self.given.as_ref().is_some_and(|given| difference_per_mille(given, &mix) < CHANGED_PER_MILLE) {
            self.is_as_given = true;
            return None;
        }
        self.given = Some(mix.clone());
        self.news = 0;
        Some(mix)
    }

    /// The last mix that was given.
    #[must_use]
    pub fn given(&self) -> Option<&Mix> {
        self.given.as_ref()
    }

    /// The counter as a value.
    #[must_use]
    pub fn dump(&self) -> DumpedMixCounter {
        let counts = self.counts.iter();
        let requests = |mix: &Mix| mix.requests().map(|(request, tasks)| (request.clone(), tasks)).collect();
        DumpedMixCounter {
            half_life_ms: self.half_life_ms,
            decayed_ms: self.decayed_ms,
            counts: counts.map(|(request, count)| (with_memory(request, count.memory), count.weight)).collect(),
            news: self.news,
            given: self.given.as_ref().map(requests),
        }
    }

    /// A counter that continues from this value.
    #[must_use]
    pub fn restore(dump: DumpedMixCounter) -> Self {
        let mut counter = Self::new(dump.half_life_ms, dump.decayed_ms);
        dump.counts.iter().for_each(|(request, weight)| counter.count(request, *weight));
        Self { news: dump.news, given: dump.given.map(Mix::counted), ..counter }
    }

    fn count(&mut self, request: &Request, weight: u64) {
        match request.has_one_wish() {
            true => self.count_single(request, weight),
            false => request.singles().iter().for_each(|single| self.count_single(single, weight)),
        }
    }

    fn count_single(&mut self, request: &Request, weight: u64) {
        // Requests that differ only in these count as equal work: rules about which devices go together, the node's
        // memory, counted resources of the node, and peers and preferences.
        let (rules, counted) = (PlacementRules::default(), BTreeMap::new());
        let mut key = Request { rules, counted, peers: None, preferences: None, ..with_memory(request, Bytes::ZERO) };
        key.devices.core = DeviceCore::new(request.devices.core.get().next_multiple_of(CORE_STEP));
        self.is_as_given = false;
        let count = self.counts.entry(key).or_default();
        count.weight = count.weight.saturating_add(weight);
        count.memory = count.memory.max(request.memory);
    }

    /// The requests with the greatest demand for device time.
    fn heaviest(&self) -> Mix {
        let mut heaviest: Vec<(&Request, &Count)> = self.counts.iter().collect();
        let demand = |request: &Request, count: &Count| u128::from(request.total_core()) * u128::from(count.weight);
        heaviest.sort_by_key(|(request, count)| Reverse((demand(request, count), count.weight)));
        let requests = heaviest.into_iter().take(MIX_REQUESTS_MAX);
        let counted =
            requests.map(|(request, count)| (with_memory(request, count.memory), count.weight / (TASK / PART)));
        Mix::counted(counted.filter(|(_, tasks)| *tasks > 0))
    }

    fn decay(&mut self, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.decayed_ms);
        if elapsed_ms < self.half_life_ms.div_ceil(STEPS) {
            return;
        }
        let half_life_ms = self.half_life_ms;
        let left = |weight: u64| {
            let left = decayed(u128::from(weight), elapsed_ms, half_life_ms);
            u64::try_from(left).unwrap_or(weight)
        };
        self.news = left(self.news);
        self.counts.retain(|_, count| {
            count.weight = left(count.weight);
            count.weight >= TASK / PART
        });
        self.decayed_ms = now_ms;
        self.is_as_given = false;
    }

    /// Forgets the half of the requests with the least weight.
    fn forget_lightest(&mut self) {
        let mut weights: Vec<(u64, Request)> =
            self.counts.iter().map(|(request, count)| (count.weight, request.clone())).collect();
        weights.sort_unstable();
        for (_, request) in weights.iter().take(REQUESTS_MAX / 2) {
            self.counts.remove(request);
        }
    }
}

fn with_memory(request: &Request, memory: Bytes) -> Request {
    Request { memory, ..request.clone() }
}

/// The part of the demand for devices that is for other requests in one mix than in the other, in thousandths.
fn difference_per_mille(left: &Mix, right: &Mix) -> u128 {
    // Each request's part of the demand, in millionths. The node's memory is ignored.
    let parts = |mix: &Mix| -> BTreeMap<Request, u128> {
        let all = u128::from(mix.device_core().max(1));
        let demand = |request: &Request, tasks: u64| u128::from(request.total_core()) * u128::from(tasks);
        let part = |(request, tasks): (&Request, u64)| {
            (with_memory(request, Bytes::ZERO), demand(request, tasks) * 1_000_000 / all)
        };
        mix.requests().map(part).collect()
    };
    let (left, right) = (parts(left), parts(right));
    let part = |of: Option<&u128>| of.copied().unwrap_or(0);
    let requests: BTreeSet<&Request> = left.keys().chain(right.keys()).collect();
    let differ = requests.into_iter().map(|of| part(left.get(of)).abs_diff(part(right.get(of))));
    // If one mix has more of a request, the other has less of another: the sum counts each difference twice.
    differ.sum::<u128>() / 2000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::device_request::DeviceRequest;
    use crate::vocabulary::quantity::MilliCpu;

    const HOUR_MS: u64 = 3_600_000;

    fn share(percent: u32) -> Request {
        Request { devices: DeviceRequest::share(DeviceCore::from_percent(percent)), ..Request::default() }
    }

    fn note(counter: &mut MixCounter, request: &Request, tasks: usize, now_ms: u64) {
        (0..tasks).for_each(|_| counter.note(request, now_ms));
    }

    fn counts(mix: Option<Mix>) -> Vec<(Request, u64)> {
        mix.iter().flat_map(|mix| mix.requests().map(|(request, count)| (request.clone(), count))).collect()
    }

    #[test]
    fn nothing_is_said_before_enough_tasks_have_come() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        note(&mut counter, &share(50), 63, 0);
        assert_eq!(counter.mix(0), None);
        note(&mut counter, &share(50), 1, 0);
        assert_eq!(counts(counter.mix(0)), [(share(50), 64 * 16)]);
    }

    #[test]
    fn what_is_only_counted_of_nodes_makes_no_other_work() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        let with_pods = |pods| Request { counted: BTreeMap::from([("pods".to_owned(), pods)]), ..share(50) };
        (0..64).for_each(|pods| counter.note(&with_pods(pods), 0));
        assert_eq!(counts(counter.mix(0)), [(share(50), 64 * 16)]);
        assert_eq!(Mix::of(&[with_pods(1), with_pods(2)]), Mix::counted([(share(50), 2)]));
    }

    #[test]
    fn what_came_a_half_life_ago_counts_half() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        note(&mut counter, &share(50), 1000, 0);
        note(&mut counter, &share(20), 1000, HOUR_MS);
        let counts = counts(counter.mix(HOUR_MS));
        assert_eq!(counts[0], (share(20), 16_000));
        assert!(counts[1].1.abs_diff(8000) <= 1, "{counts:?}");
    }

    #[test]
    fn the_same_work_again_is_no_news() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        let mut given = 0;
        for minute in 0..600 {
            note(&mut counter, &share(50), 10, minute * 60_000);
            note(&mut counter, &share(20), 10, minute * 60_000);
            given += usize::from(counter.mix(minute * 60_000).is_some());
        }
        assert_eq!(given, 1);
    }

    #[test]
    fn other_work_is_news_soon() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        note(&mut counter, &share(50), 1000, 0);
        assert!(counter.mix(0).is_some());
        note(&mut counter, &share(20), 100, HOUR_MS);
        assert_eq!(counter.mix(HOUR_MS), None, "a twelfth of the demand");
        note(&mut counter, &share(20), 200, HOUR_MS);
        assert!(counter.mix(HOUR_MS).is_some());
    }

    #[test]
    fn tasks_without_devices_are_in_the_mix_but_make_none_new() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        note(&mut counter, &share(50), 100, 0);
        assert!(counter.mix(0).is_some());
        note(&mut counter, &Request::default(), 1000, 0);
        assert_eq!(counter.mix(0), None);
        note(&mut counter, &share(90), 200, 0);
        assert_eq!(counter.mix(0).map(|mix| mix.tasks()), Some(1300 * 16));
    }

    #[test]
    fn more_sorts_of_work_than_can_be_kept_leave_the_heaviest() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        note(&mut counter, &share(50), 100, 0);
        for cpu in 0..5000 {
            counter.note(&Request { cpu: MilliCpu::new(cpu), ..share(30) }, 0);
        }
        assert!(counter.counts.len() <= REQUESTS_MAX);
        assert_eq!(counts(counter.mix(0)).first(), Some(&(share(50), 1600)));
    }

    /// A mix that was found to be as the given one is looked at again after the counts have decayed.
    #[test]
    fn what_is_forgotten_with_time_is_news() {
        let mut counter = MixCounter::new(HOUR_MS, 0);
        let large = Request { devices: DeviceRequest::whole(64), ..Request::default() };
        for is_news in [true, false] {
            note(&mut counter, &share(1), 4096, 0);
            note(&mut counter, &large, 1, 0);
            assert_eq!(counter.mix(0).is_some(), is_news);
        }
        // Of the two large tasks a thirty-second part is left, which is too little to be counted.
        assert_eq!(counts(counter.mix(6 * HOUR_MS)), [(share(1), 128 * 16)]);
    }

    #[test]
    fn a_counter_that_was_restored_goes_on_as_before() {
        let mut counter = MixCounter::new(HOUR_MS, 5);
        note(&mut counter, &Request { memory: Bytes::from_mib(7), ..share(55) }, 100, 5);
        assert!(counter.mix(5).is_some());
        note(&mut counter, &share(20), 77, HOUR_MS / 3);
        let restored = MixCounter::restore(counter.dump());
        assert_eq!(restored.dump(), counter.dump());
        let empty = MixCounter::restore(DumpedMixCounter::default());
        assert_eq!(empty.dump(), MixCounter::new(1, 0).dump());
    }
}
