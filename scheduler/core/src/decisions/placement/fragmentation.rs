//! How much of the free room is of no use to the expected work: the measure of *Beware of Fragmentation* (USENIX
//! ATC'23).

use crate::decisions::placement::kinds::Kinds;
use crate::decisions::placement::policy::NodeChange;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::MilliCpu;
use crate::vocabulary::request::Request;

/// The greatest number of devices that is tabulated. No node has more that a task could use together.
const DEVICES_MAX: usize = 1024;

/// The fragmentation measure over a mix, as tables.
///
/// For one request, if the task cannot run on a node, everything that is free of the node's devices is of no use.
/// Otherwise it is what is free on those devices that have less left than the task wants of each. The fragmentation of
/// a mix is the mean over its tasks. Here it is kept as a sum, so that it is an integer. Divide by
/// [`Fragmentation::tasks`] for the mean.
///
/// The free part of a device is the part that is free in time and memory alike.
#[derive(Clone, Debug)]
pub struct Fragmentation {
    kinds: Kinds,
    requests: Vec<(Request, i64)>,
    tasks: i64,
    /// The different CPU requests, ascending; the first is 0.
    cpu_steps: Vec<MilliCpu>,
    /// The greatest number of whole devices that any task asks for.
    devices_max: usize,
    tables: Vec<Table>,
}

/// What the free room on nodes of one kind is useful for.
#[derive(Clone, Debug, Default)]
struct Table {
    /// The different requested parts of a device, ascending, in thousandths.
    parts: Vec<u32>,
    /// By thousandths of a device: how many of `parts` are at most this large.
    rank: Vec<u8>,
    /// By CPU step, then by rank: the number of tasks for one device that want at most this part of it.
    shares: Vec<i64>,
    /// By CPU step, then by idle devices: the number of tasks for several devices that want at most this many.
    several: Vec<i64>,
}

/// The table rows for a node with a certain amount of free CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    table: &'a Table,
    shares: &'a [i64],
    several: &'a [i64],
}

impl Fragmentation {
    /// The measure over a mix.
    #[must_use]
    pub fn new(mix: &Mix) -> Self {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let requests: Vec<(Request, i64)> = mix.requests().map(|(request, n)| (request.clone(), count(n))).collect();
        let mut cpu_steps: Vec<MilliCpu> = requests.iter().map(|(request, _)| request.cpu).collect();
        cpu_steps.push(MilliCpu::ZERO);
        cpu_steps.sort_unstable();
        cpu_steps.dedup();
        let devices = requests.iter().map(|(request, _)| usize::from(request.devices.count));
        let devices_max = devices.max().unwrap_or(0).min(DEVICES_MAX);
        let tasks = requests.iter().map(|(_, count)| count).sum();
        Self { kinds: Kinds::new(mix), requests, tasks, cpu_steps, devices_max, tables: Vec::new() }
    }

    /// Number of tasks in the mix.
    #[must_use]
    pub fn tasks(&self) -> i64 {
        self.tasks
    }

    /// Updates a node that is new or has changed.
    pub fn learn(&mut self, change: NodeChange<'_>) {
        self.kinds.learn(change);
        for kind in self.tables.len()..self.kinds.len() {
            self.tables.push(self.table(kind));
        }
    }

    /// The fragmentation of a node times [`Fragmentation::tasks`], in thousandths of a device.
    #[must_use]
    pub fn of(&self, id: NodeId, node: &Node) -> i64 {
        let Some(row) = self.row(id, node.cpu_free()) else { return 0 };
        let devices = node.devices().iter().map(|device| device.usable_thousandths());
        let useful: i64 = devices.map(|free| row.useful(free)).sum();
        self.tasks * i64::from(node.usable_thousandths()) - useful - row.useful_idle(node.idle_devices())
    }

    /// The table rows for this node with this much CPU left; `None` if the node is not known.
    pub(crate) fn row(&self, id: NodeId, cpu_left: MilliCpu) -> Option<Row<'_>> {
        let table = self.tables.get(self.kinds.of(id)?)?;
        let step = self.cpu_steps.partition_point(|step| *step <= cpu_left) - 1;
        let (ranks, counts) = (table.parts.len() + 1, self.devices_max + 1);
        Some(Row {
            table,
            shares: table.shares.get(step * ranks..(step + 1) * ranks)?,
            several: table.several.get(step * counts..(step + 1) * counts)?,
        })
    }

    fn table(&self, kind: usize) -> Table {
        let memory = self.kinds.device_memory(kind);
        let allowed = || {
            let numbered = self.requests.iter().enumerate();
            numbered
                .filter(|(number, _)| self.kinds.allow(kind, *number))
                .map(|(_, (request, count))| (request, *count))
        };
        let part = |request: &Request| request.devices.part_of(memory);
        // A task for several parts of devices is rare. It counts as a task for a single part.
        let is_share =
            |request: &Request| request.devices.count == 1 || (request.devices.count > 1 && part(request) < 1000);
        let mut parts: Vec<u32> =
            allowed().filter(|(request, _)| is_share(request)).map(|(request, _)| part(request)).collect();
        parts.retain(|part| *part <= 1000);
        parts.sort_unstable();
        parts.dedup();
        let rank = |free: u32| parts.partition_point(|part| *part <= free);
        let rank_of: Vec<u8> = (0..=1000).map(|free| u8::try_from(rank(free)).unwrap_or(u8::MAX)).collect();
        let (mut shares, mut several) = (Vec::new(), Vec::new());
        for step in &self.cpu_steps {
            // Tasks by the rank of their part, or by their number of devices. Then the counts are added up from the
            // least.
            let mut by_rank = vec![0; parts.len() + 1];
            let mut by_count = vec![0; self.devices_max + 1];
            for (request, count) in allowed().filter(|(request, _)| request.cpu <= *step && request.devices.count > 0) {
                if !is_share(request) {
                    // Tasks for more devices than are tabulated fit on no node.
                    if let Some(tasks) = by_count.get_mut(usize::from(request.devices.count)) {
                        *tasks += count;
                    }
                } else if part(request) <= 1000 {
                    by_rank[rank(part(request))] += count;
                }
            }
            for (sums, counts) in [(&mut shares, by_rank), (&mut several, by_count)] {
                sums.extend(counts.iter().scan(0, |sum, count| {
                    *sum += count;
                    Some(*sum)
                }));
            }
        }
        Table { rank: rank_of, parts, shares, several }
    }
}

impl Row<'_> {
    /// (Free part of a device) × (number of tasks for one device that can use it).
    pub(crate) fn useful(&self, free: u16) -> i64 {
        let rank = self.table.rank.get(usize::from(free)).copied().unwrap_or_default();
        i64::from(free) * self.shares.get(usize::from(rank)).copied().unwrap_or_default()
    }

    /// (Idle devices in thousandths) × (number of tasks for several devices that can use this many).
    pub(crate) fn useful_idle(&self, idle: u16) -> i64 {
        let count = self.several.get(usize::from(idle)).or(self.several.last()).copied().unwrap_or_default();
        1000 * i64::from(idle) * count
    }
}
