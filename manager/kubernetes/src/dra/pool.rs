//! The pool of a node: its devices and counters, laid out in resource slices within the limits of the API server.

use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::version::Info;
use tracing::warn;

use super::names::DRIVER;
use super::resource_slices::Content;

/// Maximum devices in one resource slice. The API server accepts 128, but only 64 if they have taints or counters.
const DEVICES_MAX: usize = 64;
/// Maximum sets of counters in one resource slice.
const COUNTER_SETS_MAX: usize = 8;
/// The first minor version of Kubernetes 1 whose schedulers want counters in resource slices of their own. Earlier
/// schedulers want them beside the devices that take of them.
const SEPARATE_SINCE_MINOR: u32 = 35;

/// The place of counters in resource slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// In resource slices of their own.
    Separate,
    /// Beside the devices that take of them, GPU by GPU.
    Together,
}

impl Layout {
    /// The layout for an API server of this version.
    #[must_use]
    pub(super) fn of(version: &Info) -> Layout {
        // Some builds report for example `34+`.
        let digits = version.minor.trim_end_matches(|other: char| !other.is_ascii_digit());
        match digits.parse::<u32>() {
            Ok(minor) if version.major == "1" && minor < SEPARATE_SINCE_MINOR => Layout::Together,
            _ => Layout::Separate,
        }
    }
}

/// The content of one resource slice.
#[derive(Default)]
struct Share {
    devices: Vec<Device>,
    counter_sets: Vec<CounterSet>,
}

/// The resource slices of the pool. There is at least one; without devices it shows that there are none.
#[must_use]
pub(super) fn specs(node_name: &str, content: &Content, layout: Layout, generation: i64) -> Vec<ResourceSliceSpec> {
    let mut shares = match layout {
        Layout::Separate => separate(content),
        Layout::Together => together(content),
    };
    if shares.is_empty() {
        shares.push(Share::default());
    }
    let count = i64::try_from(shares.len()).unwrap_or(i64::MAX);
    let spec = |Share { devices, counter_sets }: Share| ResourceSliceSpec {
        driver: DRIVER.into(),
        node_name: Some(node_name.into()),
        pool: ResourcePool { generation, name: node_name.into(), resource_slice_count: count },
        // A resource slice has devices or counters, but not both, even if the list of devices is empty.
        devices: (counter_sets.is_empty() || !devices.is_empty()).then_some(devices),
        shared_counters: (!counter_sets.is_empty()).then_some(counter_sets),
        ..ResourceSliceSpec::default()
    };
    shares.into_iter().map(spec).collect()
}

fn separate(content: &Content) -> Vec<Share> {
    let counters = content.counter_sets.chunks(COUNTER_SETS_MAX);
    let counters = counters.map(|sets| Share { counter_sets: sets.to_vec(), ..Share::default() });
    counters.chain(spread(&content.devices)).collect()
}

fn spread(devices: &[Device]) -> impl Iterator<Item = Share> {
    devices.chunks(DEVICES_MAX).map(|devices| Share { devices: devices.to_vec(), ..Share::default() })
}

fn together(content: &Content) -> Vec<Share> {
    let (taking, others): (Vec<Device>, Vec<Device>) =
        content.devices.iter().cloned().partition(|device| device.consumes_counters.is_some());
    let takes = |device: &&Device, set: &CounterSet| {
        device.consumes_counters.iter().flatten().any(|consumption| consumption.counter_set == set.name)
    };
    let of_set = content.counter_sets.iter().map(|set| {
        let mut devices: Vec<Device> = taking.iter().filter(|device| takes(device, set)).cloned().collect();
        if devices.len() > DEVICES_MAX {
            warn!(gpu = set.name, devices = devices.len(), DEVICES_MAX, "not all MIG instances can be offered");
            devices.truncate(DEVICES_MAX);
        }
        Share { devices, counter_sets: vec![set.clone()] }
    });
    spread(&others).chain(of_set).collect()
}

/// Whether these resource slices are a whole pool with the same content as `wanted`.
#[must_use]
pub(super) fn is_whole(found: &[ResourceSlice], wanted: &[ResourceSliceSpec]) -> bool {
    let said = |spec: &ResourceSliceSpec| {
        let mut devices = spec.devices.clone().unwrap_or_default();
        devices.sort_by(|one, other| one.name.cmp(&other.name));
        let mut counter_sets = spec.shared_counters.clone().unwrap_or_default();
        counter_sets.sort_by(|one, other| one.name.cmp(&other.name));
        (spec.pool.clone(), devices, counter_sets)
    };
    let is_said = |wanted: &ResourceSliceSpec| found.iter().any(|slice| said(&slice.spec) == said(wanted));
    found.len() == wanted.len() && wanted.iter().all(is_said)
}

#[cfg(test)]
mod tests;
