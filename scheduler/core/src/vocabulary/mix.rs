//! The mix of requests that is expected.

use std::collections::BTreeMap;

use crate::vocabulary::quantity::Bytes;
use crate::vocabulary::request::Request;

/// The greatest count of a request. It keeps sums over a mix in range.
const TASKS_MAX: u64 = 1 << 28;

/// Requests, and how often each of them occurs: what claims are expected to ask for. The counts may be known in advance
/// or counted as claims come. The order in which claims will come is not known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mix {
    requests: Vec<(Request, u64)>,
}

impl Mix {
    /// Counts requests. Requests that differ only in the node's memory count as one, with the greatest memory among
    /// them. Counted resources of nodes are left out: they do not decide which node is best.
    #[must_use]
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Self {
        Self::counted(requests.into_iter().map(|request| (request.clone(), 1)))
    }

    /// Takes requests that were counted already. Requests that differ only in the node's memory count as one. A task
    /// with several device requests counts as one task for each of them. A task with alternatives counts as its first
    /// choice.
    #[must_use]
    pub fn counted(requests: impl IntoIterator<Item = (Request, u64)>) -> Self {
        let mut counts: BTreeMap<Request, (u64, Bytes)> = BTreeMap::new();
        let mut add = |request: Request, tasks: u64| {
            let of_memory = request.memory;
            let (count, memory) =
                counts.entry(Request { memory: Bytes::ZERO, counted: BTreeMap::new(), ..request }).or_default();
            *count = count.saturating_add(tasks).min(TASKS_MAX);
            *memory = (*memory).max(of_memory);
        };
        for (request, tasks) in requests {
            match request.has_one_wish() {
                true => add(request, tasks),
                false => request.singles().into_iter().for_each(|single| add(single, tasks)),
            }
        }
        let mut requests: Vec<(Request, u64)> =
            counts.into_iter().map(|(key, (count, memory))| (Request { memory, ..key }, count)).collect();
        requests.sort_by(|(left, left_count), (right, right_count)| {
            (right_count, order(right)).cmp(&(left_count, order(left)))
        });
        Self { requests }
    }

    /// The most frequent requests that together make up at least this many percent of all tasks.
    #[must_use]
    pub fn most_frequent(&self, percent: u64) -> Self {
        let (all, mut covered) = (self.tasks(), 0);
        let wanted = |covered: &u64| covered * 100 < all * percent;
        let requests = self.requests.iter().take_while(|(_, count)| {
            let take = wanted(&covered);
            covered += count;
            take
        });
        Self { requests: requests.cloned().collect() }
    }

    /// The requests, the most frequent first, with how often each occurs.
    pub fn requests(&self) -> impl Iterator<Item = (&Request, u64)> {
        self.requests.iter().map(|(request, count)| (request, *count))
    }

    /// Number of tasks.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.requests.iter().map(|(_, count)| count).sum()
    }

    /// Device time that all tasks together ask for, in thousandths of a device.
    #[must_use]
    pub fn device_core(&self) -> u64 {
        self.requests.iter().map(|(request, count)| request.total_core() * count).sum()
    }
}

/// Among equally frequent requests the greater is first.
fn order(request: &Request) -> impl Ord + '_ {
    let models: Vec<&str> = request.constraints.models.iter().map(String::as_str).collect();
    (request.cpu, request.devices.core, request.devices.count, models.join("|"))
}
