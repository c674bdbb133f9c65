//! The facts about a pod and a node that a translation uses.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::decision::{GANG, GANG_SIZE, OF_THE_SCHEDULER};
use crate::dialect::Dialect;
use crate::quantity;
use crate::refusal::Refusal;
use crate::systems::cgpu::COUNT;
use crate::systems::elastic_gpu::ELASTIC_GPU_CLAIM;
use crate::systems::hami::PRIORITY;
use crate::systems::own::ANNOTATIONS;

/// All labels that are read.
pub const LABELS: [&str; 1] = [COUNT];

/// The domain of Aliquot's own names.
const DOMAIN: &str = "aliquot.dev";

/// A pod, as far as requests for devices are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// The labels of the pod: at least [`LABELS`], if it has them.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// Its containers in order, without init containers.
    pub containers: Vec<Container>,
}

impl Pod {
    /// Describes annotations in Aliquot's domain that do not exist. They are typing errors, which would have no effect
    /// and go unnoticed. `None` if the pod has none.
    #[must_use]
    pub fn unknown_annotations(&self) -> Option<String> {
        let is_of_claim = |key: &str| {
            let container = key.strip_prefix(ELASTIC_GPU_CLAIM);
            container.is_some_and(|name| self.containers.iter().any(|container| container.name == name))
        };
        let is_known = |key: &&str| ANNOTATIONS.contains(key) || OF_THE_SCHEDULER.contains(key) || is_of_claim(key);
        let unknown = own_annotations(self.annotations.keys()).filter(|key| !is_known(key));
        let unknown: Vec<&str> = unknown.collect();
        let listed = || {
            let known = ANNOTATIONS.join(", ");
            format!(
                "{} changes nothing; there are {known}, {GANG}, {GANG_SIZE} and {ELASTIC_GPU_CLAIM}CONTAINER",
                unknown.join(", ")
            )
        };
        (!unknown.is_empty()).then(listed)
    }

    /// An annotation that is a number within a range.
    pub(crate) fn annotated<N>(&self, key: &str, range: RangeInclusive<N>) -> Result<Option<N>, Refusal>
    where
        N: FromStr + PartialOrd + Display,
    {
        number(key, self.annotations.get(key), range)
    }

    /// A label that is a number within a range.
    pub(crate) fn labelled(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Refusal> {
        number(key, self.labels.get(key), range)
    }
}

fn number<N>(key: &str, text: Option<&String>, range: RangeInclusive<N>) -> Result<Option<N>, Refusal>
where
    N: FromStr + PartialOrd + Display,
{
    let Some(text) = text else { return Ok(None) };
    match text.parse().ok().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err(Refusal::value(key, text, format!("a whole number from {} to {}", range.start(), range.end()))),
    }
}

/// Those of the annotations in Aliquot's domain that say how much a pod asks for, or that do not exist. Those of the
/// scheduler, and those that name a claim for a part of a device, are left out.
pub fn requesting_annotations<'a>(keys: impl Iterator<Item = &'a String>) -> impl Iterator<Item = &'a str> {
    own_annotations(keys).filter(|key| !OF_THE_SCHEDULER.contains(key) && !key.starts_with(ELASTIC_GPU_CLAIM))
}

/// Those of the annotations that are in Aliquot's domain, or in one below it.
fn own_annotations<'a>(keys: impl Iterator<Item = &'a String>) -> impl Iterator<Item = &'a str> {
    keys.map(String::as_str).filter(|key| is_own(key))
}

/// Whether a name is in Aliquot's domain, or in one below it.
fn is_own(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    domain == DOMAIN || domain.strip_suffix(DOMAIN).is_some_and(|above| above.ends_with('.'))
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The name of the container.
    pub name: String,
    /// Its limits, as quantities. For an extended resource the request always equals the limit.
    pub resources: BTreeMap<String, String>,
}

impl Container {
    /// The resources by which it asks for devices. Kubelet asks no plugin for 0, and so charts write `nvidia.com/gpu: 0`
    /// for a container without a device: words of other systems that are all 0 ask for nothing. A 0 beside other amounts
    /// is a mistake, and so is one in Aliquot's own words, which no chart of another system writes.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        let words = || {
            let names = self.resources.keys().map(String::as_str);
            names.filter(|name| Dialect::ALL.into_iter().any(|dialect| dialect.has_resource(name)))
        };
        let wants = |name: &str| {
            let amount = self.resources.get(name).map(|amount| quantity::whole(amount));
            !is_own(name) && name != PRIORITY && amount != Some(Ok(0))
        };
        let is_asked_in_others = words().any(wants);
        words().filter(move |name| is_asked_in_others || is_own(name))
    }
}

/// The settings of the node's configuration that the dialects depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The bytes that one `aliquot.dev/gpu-memory` stands for.
    pub memory_unit_bytes: u64,
    /// The percent of a device's memory that are kept for containers which ask for a part of its time alone, in
    /// proportion to the time. `None`: none is kept, and they get the same part of the memory as of the time.
    pub core_memory_percent: Option<u32>,
    /// Whether whole devices are also advertised, as `aliquot.dev/gpu`.
    pub whole_devices: bool,
    /// The bytes that one `aliyun.com/gpu-mem` stands for in `GPUShare`: a GiB or a MiB. In cGPU it is always a GiB.
    pub gpushare_unit_bytes: u64,
    /// The node's label `tke.cloud.tencent.com/qgpu-schedule-policy`.
    pub qgpu_policy: QgpuPolicy,
    /// The number of containers that may share one device for HAMi and Volcano, 1 to 100.
    pub slots_per_device: u32,
    /// The number of `nvidia.com/gpu.shared` that one device counts as, 1 to 100. 1: devices are whole, and this
    /// resource is not advertised.
    pub nvidia_replicas: u32,
    /// The number of `k8s.amazonaws.com/vgpu` that one device counts as, 1 to 48.
    pub aws_vgpus: u32,
}

impl Default for NodeFacts {
    fn default() -> NodeFacts {
        NodeFacts {
            memory_unit_bytes: 256 << 20,
            core_memory_percent: None,
            whole_devices: false,
            gpushare_unit_bytes: 1 << 30,
            qgpu_policy: QgpuPolicy::default(),
            slots_per_device: 10,
            nvidia_replicas: 1,
            aws_vgpus: 10,
        }
    }
}

/// How qGPU shares the time of a node's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QgpuPolicy {
    /// `best-effort`: no container is limited. Aliquot guarantees the request all the same, which qGPU does not.
    #[default]
    BestEffort,
    /// `fixed-share`: the request is also the limit.
    FixedShare,
    /// `burst-share`: the request is guaranteed, and time that other containers leave may be used.
    BurstShare,
}

impl QgpuPolicy {
    /// The long form of its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QgpuPolicy::BestEffort => "best-effort",
            QgpuPolicy::FixedShare => "fixed-share",
            QgpuPolicy::BurstShare => "burst-share",
        }
    }

    /// The policy that a label's value names, in its long or short form.
    #[must_use]
    pub fn parse(label: &str) -> Option<QgpuPolicy> {
        Some(match label {
            "best-effort" | "be" => QgpuPolicy::BestEffort,
            "fixed-share" | "fs" => QgpuPolicy::FixedShare,
            "burst-share" | "bs" => QgpuPolicy::BurstShare,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_that_there_are_not_are_named() {
        let pod = |keys: &[&str]| Pod {
            annotations: keys.iter().map(|key| ((*key).to_owned(), "1".to_owned())).collect(),
            ..Pod::default()
        };
        let known = ["aliquot.dev/gpu-core-limit", "aliquot.dev/priority-class", "aliquot.dev/devices"];
        assert_eq!(pod(&known).unknown_annotations(), None);
        let of_the_scheduler = ["aliquot.dev/generation", "aliquot.dev/gang", "aliquot.dev/gang-size"];
        assert_eq!(pod(&of_the_scheduler).unknown_annotations(), None);
        assert_eq!(pod(&["note", "example.com/aliquot.dev", "notaliquot.dev/x", ""]).unknown_annotations(), None);
        let wrong = ["aliquot.dev/gpu-core-limt", "aliquot.dev/priority-class", "gpu.aliquot.dev/x"];
        assert_eq!(
            pod(&wrong).unknown_annotations().as_deref(),
            Some(
                "aliquot.dev/gpu-core-limt, gpu.aliquot.dev/x changes nothing; there are aliquot.dev/gpu-core-limit, \
                 aliquot.dev/priority-class, aliquot.dev/gang, aliquot.dev/gang-size and \
                 elastic-gpu-claim.aliquot.dev/CONTAINER"
            )
        );
        let mut of_claim = pod(&["elastic-gpu-claim.aliquot.dev/main"]);
        assert!(of_claim.unknown_annotations().unwrap().starts_with("elastic-gpu-claim.aliquot.dev/main changes"));
        of_claim.containers.push(Container { name: "main".into(), ..Container::default() });
        assert_eq!(of_claim.unknown_annotations(), None);
    }
}
