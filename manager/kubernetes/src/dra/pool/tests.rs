//! Pools of all sizes, within the API server's limits.

use k8s_openapi::api::resource::v1::DeviceCounterConsumption;

use super::*;

fn plain(count: usize) -> Vec<Device> {
    (0..count).map(|at| Device { name: format!("gpu-{at:03}"), ..Device::default() }).collect()
}

/// GPUs with this number of possible instances each.
fn partitioned(gpus: usize, instances: usize) -> Content {
    let taking = |gpu: usize, at: usize| Device {
        name: format!("gpu-{gpu}-{at}"),
        consumes_counters: Some(vec![DeviceCounterConsumption {
            counter_set: format!("gpu-{gpu}"),
            ..DeviceCounterConsumption::default()
        }]),
        ..Device::default()
    };
    let devices = (0..gpus).flat_map(|gpu| (0..instances).map(move |at| taking(gpu, at))).collect();
    let set = |gpu: usize| CounterSet { name: format!("gpu-{gpu}"), ..CounterSet::default() };
    Content { devices, counter_sets: (0..gpus).map(set).collect() }
}

fn sizes(specs: &[ResourceSliceSpec]) -> Vec<(usize, usize)> {
    let size = |spec: &ResourceSliceSpec| {
        (spec.devices.iter().flatten().count(), spec.shared_counters.iter().flatten().count())
    };
    specs.iter().map(size).collect()
}

fn slices(specs: Vec<ResourceSliceSpec>) -> Vec<ResourceSlice> {
    specs.into_iter().map(|spec| ResourceSlice { spec, ..ResourceSlice::default() }).collect()
}

#[test]
fn devices_are_spread_over_as_many_resource_slices_as_they_need() {
    for (count, expected) in [(0, vec![0]), (1, vec![1]), (64, vec![64]), (65, vec![64, 1]), (130, vec![64, 64, 2])] {
        let content = Content { devices: plain(count), ..Content::default() };
        for layout in [Layout::Separate, Layout::Together] {
            let specs = specs("node-1", &content, layout, 3);
            let devices: Vec<usize> = sizes(&specs).into_iter().map(|(devices, _)| devices).collect();
            assert_eq!(devices, expected);
            let is_of_pool = |spec: &ResourceSliceSpec| {
                spec.pool.generation == 3
                    && spec.pool.resource_slice_count == expected.len() as i64
                    && spec.devices.is_some()
                    && spec.shared_counters.is_none()
            };
            assert!(specs.iter().all(is_of_pool));
        }
    }
}

#[test]
fn counters_have_resource_slices_of_their_own_where_schedulers_want_it() {
    let specs = specs("node-1", &partitioned(9, 25), Layout::Separate, 1);
    assert_eq!(sizes(&specs), [(0, 8), (0, 1), (64, 0), (64, 0), (64, 0), (33, 0)]);
    assert!(specs.iter().all(|spec| spec.devices.is_some() != spec.shared_counters.is_some()));
}

#[test]
fn counters_are_beside_the_devices_that_take_of_them_where_schedulers_want_it() {
    let mut content = partitioned(2, 25);
    content.devices.extend(plain(1));
    let specs = specs("node-1", &content, Layout::Together, 1);
    assert_eq!(sizes(&specs), [(1, 0), (25, 1), (25, 1)]);
    let first = specs[1].devices.iter().flatten().all(|device| device.name.starts_with("gpu-0-"));
    assert!(first && specs[1].shared_counters.as_ref().unwrap()[0].name == "gpu-0");
    // More instances do not fit into one resource slice, and a set cannot be split between two.
    assert_eq!(sizes(&super::specs("node-1", &partitioned(1, 70), Layout::Together, 1)), [(64, 1)]);
}

#[test]
fn the_layout_follows_the_version() {
    for (minor, expected) in [
        ("34", Layout::Together),
        ("34+", Layout::Together),
        ("35", Layout::Separate),
        ("36+", Layout::Separate),
        ("", Layout::Separate),
    ] {
        let version = Info { major: "1".into(), minor: minor.into(), ..Info::default() };
        assert_eq!(Layout::of(&version), expected, "{minor}");
    }
}

#[test]
fn a_pool_is_taken_over_only_if_it_is_whole_and_says_the_same() {
    let content = Content { devices: plain(100), ..Content::default() };
    let wanted = specs("node-1", &content, Layout::Separate, 7);
    let found = slices(wanted.clone());
    assert!(is_whole(&found, &wanted));
    assert!(!is_whole(&[], &wanted) && !is_whole(&found[..1], &wanted));
    let fewer = Content { devices: plain(99), ..Content::default() };
    assert!(!is_whole(&found, &specs("node-1", &fewer, Layout::Separate, 7)));
    let mut mixed = found;
    mixed[1].spec.pool.generation = 8;
    assert!(!is_whole(&mixed, &wanted));
    // The API server has another version now.
    let partitioned = partitioned(1, 3);
    let found = slices(specs("node-1", &partitioned, Layout::Together, 7));
    assert!(!is_whole(&found, &specs("node-1", &partitioned, Layout::Separate, 7)));
}
