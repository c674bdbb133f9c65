//! What managers have reported, and how long ago.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_api_server::questions::ContainerName;
use aliquot_proto::reports::v1::{self as wire, Consumer, Device, NodeReport};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::INTERVAL;
use super::meter::PodName;
use crate::mirror::{DeviceSaid, DevicesSaid};
use crate::scheduling_policy::Enforcement;

/// A report that is older than this does not count any more.
const FRESH: Duration = Duration::from_secs(3 * INTERVAL.as_secs());

/// A node that has said nothing for so long may be gone, and is forgotten. If it speaks again, its report counts as its
/// first one.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Characters that are read of what is wrong with a device, at most: the text stands in the conditions of pods.
const PROBLEM_CHARS_MAX: usize = 256;

/// The last report of each node.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<String, Heard>>);

/// What was heard of a node.
#[derive(Debug)]
struct Heard {
    /// Counts the calls of the node's manager.
    call: u64,
    /// When the last call began or the last report came.
    at: Instant,
    last: Option<Last>,
    /// What the mirror was told of its devices.
    told: Option<DevicesSaid>,
    /// Device time of each slice on each device that is counted already; `None`: this is the node's first report.
    counted_ns: Option<BTreeMap<(String, String), u64>>,
    /// Device time that pods have used, and that [`Known::take_used`] has not taken yet.
    used_ns: BTreeMap<PodName, u64>,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    parts: Vec<PartUse>,
}

impl Default for Heard {
    fn default() -> Heard {
        let (call, last, told, counted_ns, used_ns) = Default::default();
        Heard { call, at: Instant::now(), last, told, counted_ns, used_ns }
    }
}

/// What a slice uses of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartUse {
    /// The slice, by an id that is never used again.
    pub(crate) slice: String,
    pub(crate) device: String,
    /// The containers that run in the slice.
    pub(crate) consumers: Vec<ContainerName>,
    /// Thousandths of the device's time, in the last seconds.
    pub(crate) core_thousandths: u32,
    /// Device time since the slice was made.
    pub(crate) core_ns: u64,
    pub(crate) memory_bytes: u64,
}

impl Known {
    /// A manager begins a call, which ends the one before. Returns the number of the call.
    pub(super) fn begin(&self, node: &str) -> u64 {
        let mut nodes = self.0.lock();
        let heard = nodes.entry(node.to_owned()).or_default();
        (heard.call, heard.at) = (heard.call + 1, Instant::now());
        heard.call
    }

    /// Takes a report, unless the manager has begun another call since. Returns whether it was taken. What it says of
    /// devices is told if it is new, and before another report is taken.
    pub(super) fn take(&self, node: &str, call: u64, report: NodeReport, tell: impl FnOnce(DevicesSaid)) -> bool {
        let mut nodes = self.0.lock();
        let Some(heard) = nodes.get_mut(node).filter(|heard| heard.call == call) else { return false };
        let said = said(&report, heard.told.as_ref());
        let parts = parts(report);
        heard.count(&parts);
        heard.at = Instant::now();
        heard.last = Some(Last { at: heard.at, parts });
        if heard.told.as_ref() != Some(&said) {
            heard.told = Some(said.clone());
            tell(said);
        }
        true
    }

    /// Takes the device time that pods have used since the last call.
    pub(super) fn take_used(&self) -> BTreeMap<PodName, u64> {
        let mut all = BTreeMap::new();
        for heard in self.0.lock().values_mut() {
            for (pod, used_ns) in std::mem::take(&mut heard.used_ns) {
                *all.entry(pod).or_default() += used_ns;
            }
        }
        all
    }

    /// Tells of the nodes that have become silent.
    pub(super) fn forget_silent(&self, mut tell: impl FnMut(&str)) {
        self.0.lock().retain(|node, heard| {
            if heard.last.take_if(|last| last.at.elapsed() > FRESH).is_some() {
                heard.told = None;
                tell(node);
            }
            heard.at.elapsed() <= FORGOTTEN
        });
    }

    /// How old the last report of each node is, and what its slices use. What is too old is left out.
    pub(crate) fn fresh<T>(&self, mut each: impl FnMut(&str, Duration, &[PartUse]) -> T) -> Vec<T> {
        let nodes = self.0.lock();
        let known = nodes.iter().filter_map(|(node, heard)| {
            let last = heard.last.as_ref()?;
            let age = last.at.elapsed();
            (age <= FRESH).then_some((node, age, last))
        });
        known.map(|(node, age, last)| each(node, age, &last.parts)).collect()
    }
}

impl Heard {
    /// Counts the device time that pods have used since the report before. Time that was used before the first report
    /// is not counted for any pod. The time of a slice that several pods have counts for one of them. The time of a
    /// slice of which the pod is not known yet counts when it is known.
    fn count(&mut self, parts: &[PartUse]) {
        let is_first = self.counted_ns.is_none();
        let before = self.counted_ns.take().unwrap_or_default();
        let mut counted = BTreeMap::new();
        for part in parts {
            let key = (part.slice.clone(), part.device.clone());
            let unknown_ns = if is_first { part.core_ns } else { 0 };
            let counted_ns = before.get(&key).copied().unwrap_or(unknown_ns);
            let now_ns = match part.consumers.first() {
                Some(consumer) => {
                    let pod = (consumer.namespace.clone(), consumer.pod.clone());
                    *self.used_ns.entry(pod).or_default() += part.core_ns.saturating_sub(counted_ns);
                    part.core_ns
                }
                None => counted_ns,
            };
            counted.insert(key, now_ns);
        }
        self.counted_ns = Some(counted);
    }
}

/// What a report says of devices. `told`: what was told of them last.
fn said(report: &NodeReport, told: Option<&DevicesSaid>) -> DevicesSaid {
    let device = |device: &Device| {
        let percent = u128::from(device.memory_outside_bytes()) * 100;
        let percent = percent.div_ceil(u128::from(device.memory_bytes.max(1))).min(100);
        let percent = u8::try_from(percent).unwrap_or(100);
        let before = told.and_then(|told| told.get(&device.uuid)).map_or(0, |of| of.outside_percent);
        let said = DeviceSaid {
            problem: Some(device.problem.chars().take(PROBLEM_CHARS_MAX).collect())
                .filter(|of: &String| !of.is_empty()),
            enforcement: match device.enforcement() {
                wire::Enforcement::Unspecified | wire::Enforcement::Limits => Enforcement::Any,
                wire::Enforcement::Shares => Enforcement::Shares,
                wire::Enforcement::Hardware => Enforcement::Hardware,
            },
            // A fall by one percent is not told, because use goes up and down by a little all the time.
            outside_percent: if percent + 1 == before { before } else { percent },
        };
        (device.uuid.clone(), said)
    };
    report.devices.iter().map(device).collect()
}

/// What a report says of slices.
fn parts(report: NodeReport) -> Vec<PartUse> {
    let mut parts = Vec::new();
    for slice in report.slices {
        let consumer = |of: Consumer| ContainerName { namespace: of.namespace, pod: of.pod, container: of.container };
        let consumers: Vec<ContainerName> = slice.consumers.into_iter().map(consumer).collect();
        parts.extend(slice.parts.into_iter().map(|part| PartUse {
            slice: slice.id.clone(),
            device: part.device_uuid,
            consumers: consumers.clone(),
            core_thousandths: (part.core_used_millipercent.min(100_000) + 50) / 100,
            core_ns: part.core_used_ns,
            memory_bytes: part.memory_used_bytes,
        }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use aliquot_proto::reports::v1::{Part, Slice};

    use super::*;

    fn report(core_used_ns: u64) -> NodeReport {
        let consumer = Consumer { namespace: "team".into(), pod: "a".into(), container: "main".into() };
        let part =
            Part { device_uuid: "GPU-1".into(), core_used_millipercent: 30_050, core_used_ns, memory_used_bytes: 7 };
        let slice = Slice { id: "s".into(), consumers: vec![consumer], parts: vec![part] };
        NodeReport { slices: vec![slice], ..NodeReport::default() }
    }

    /// Takes a report without telling what it says of devices.
    fn take(known: &Known, node: &str, call: u64, core_used_ns: u64) -> bool {
        known.take(node, call, report(core_used_ns), drop)
    }

    fn used(known: &Known) -> Vec<(String, u64)> {
        let of_node = |node: &str, _, parts: &[PartUse]| (node.to_owned(), parts.iter().map(|part| part.core_ns).sum());
        known.fresh(of_node)
    }

    fn silent(known: &Known) -> Vec<String> {
        let mut silent = Vec::new();
        known.forget_silent(|node| silent.push(node.to_owned()));
        silent
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_node_is_as_one_that_never_reports() {
        let known = Known::default();
        let (a, b) = (known.begin("a"), known.begin("b"));
        assert!(take(&known, "a", a, 1) && take(&known, "b", b, 2));
        assert_eq!(used(&known), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        tokio::time::advance(FRESH).await;
        take(&known, "b", b, 3);
        assert_eq!(silent(&known), [""; 0]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(used(&known), [("b".to_owned(), 3)]);
        assert_eq!(silent(&known), ["a"]);
        assert_eq!(silent(&known), [""; 0], "it is told once");
        let mut told = Vec::new();
        assert!(known.take("a", a, report(4), |said| told.push(said)));
        assert_eq!(told.len(), 1, "a node that speaks again is told of anew");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_are_gone_take_no_memory() {
        let known = Known::default();
        let (a, b, _) = (known.begin("a"), known.begin("b"), known.begin("c"));
        assert!(take(&known, "a", a, 1) && take(&known, "b", b, 2));
        tokio::time::advance(FORGOTTEN).await;
        assert!(take(&known, "b", b, 3));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(silent(&known), ["a"]);
        assert!(known.0.lock().keys().eq(["b"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_s_last_call_counts() {
        let known = Known::default();
        let first = known.begin("a");
        assert!(take(&known, "a", first, 1));
        let second = known.begin("a");
        assert!(!take(&known, "a", first, 9));
        assert!(take(&known, "a", second, 2));
        assert!(!take(&known, "b", 1, 1), "it has not begun a call");
        assert_eq!(used(&known), [("a".to_owned(), 2)]);
        let parts = known.fresh(|_, _, parts| parts.to_vec()).remove(0);
        assert_eq!(parts[0].core_thousandths, 301);
        assert_eq!((parts[0].consumers[0].pod.as_str(), parts[0].memory_bytes), ("a", 7));
    }

    #[tokio::test]
    async fn what_is_said_of_devices_is_told_when_it_really_changes() {
        let known = Known::default();
        let call = known.begin("a");
        let mut told: Vec<u8> = Vec::new();
        for (outside, problem) in [(250, ""), (250, ""), (241, ""), (231, ""), (219, ""), (2000, ""), (2000, "XID 79")]
        {
            let device = Device {
                uuid: "GPU-1".into(),
                problem: problem.into(),
                memory_bytes: 1000,
                memory_outside_bytes: Some(outside),
                enforcement: wire::Enforcement::Shares.into(),
            };
            let report = NodeReport { devices: vec![device], ..NodeReport::default() };
            known.take("a", call, report, |said| {
                let said = &said["GPU-1"];
                assert_eq!(said.enforcement, Enforcement::Shares);
                told.push(if said.problem.is_some() { 255 } else { said.outside_percent });
            });
        }
        assert_eq!(told, [25, 22, 100, 255]);
    }

    #[tokio::test(start_paused = true)]
    async fn device_time_is_counted_once_and_for_whom_has_used_it() {
        let known = Known::default();
        let call = known.begin("a");
        let say = |slices: &[(&str, &str, u64)]| {
            let slice = |(id, pod, core_used_ns): &(&str, &str, u64)| {
                let consumer = Consumer { namespace: "team".into(), pod: (*pod).into(), container: "main".into() };
                let consumers = Some(consumer).filter(|of| !of.pod.is_empty()).into_iter().collect();
                let part = Part { device_uuid: "GPU-1".into(), core_used_ns: *core_used_ns, ..Part::default() };
                Slice { id: (*id).into(), consumers, parts: vec![part] }
            };
            let report = NodeReport { slices: slices.iter().map(slice).collect(), ..NodeReport::default() };
            assert!(known.take("a", call, report, drop));
        };
        // It is not known how much of the time that was used before this leader is counted already.
        say(&[("s", "p", 100)]);
        say(&[("s", "p", 130), ("t", "", 5)]);
        say(&[("s", "p", 160), ("t", "q", 7), ("u", "p", 1)]);
        let used = |pod: &str, ns: u64| (("team".to_owned(), pod.to_owned()), ns);
        assert_eq!(known.take_used(), [used("p", 61), used("q", 7)].into());
        assert!(known.take_used().is_empty());
        // Silence ends, and nothing of it is lost.
        tokio::time::advance(2 * FRESH).await;
        known.forget_silent(|_| ());
        say(&[("t", "q", 17)]);
        assert_eq!(known.take_used(), [used("q", 10)].into());
    }
}
