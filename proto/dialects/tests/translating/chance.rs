//! Properties that hold for every pod: no translation panics, and no container gets more than it asked for.

use std::collections::BTreeMap;

use aliquot_dialects::{Container, Dialect, LABELS, NodeFacts, Placed, Pod, QgpuPolicy, Share, Spoken, Unit, quantity};
use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::sample::select;

/// Names of resources that the translators read, and one that they do not read.
const RESOURCES: [&str; 31] = [
    "aliquot.dev/gpu-core",
    "aliquot.dev/gpu-memory",
    "aliquot.dev/gpu",
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-core.percentage",
    "tke.cloud.tencent.com/qgpu-core",
    "tke.cloud.tencent.com/qgpu-memory",
    "tke.cloud.tencent.com/qgpu-core-greedy",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
    "volcano.sh/gpu-memory",
    "volcano.sh/gpu-number",
    "elasticgpu.com/gpu-core",
    "elasticgpu.com/gpu-memory",
    "elasticgpu.io/gpu-core",
    "elasticgpu.io/gpu-memory",
    "gpushare.provisioner.elasticgpu.io/gpu-core",
    "k8s.amazonaws.com/vgpu",
    "aliquot.dev/kai-gpu",
    "cpu",
];
const ANNOTATIONS: [&str; 13] = [
    "aliquot.dev/gpu-core-limit",
    "aliquot.dev/priority-class",
    "tencent.com/vcuda-core-limit",
    "tencent.com/predicate-gpu-idx-0",
    "ALIYUN_COM_GPU_MEM_IDX",
    "tke.cloud.tencent.com/app-class",
    "hami.io/vgpu-devices-allocated",
    "volcano.sh/vgpu-ids-new",
    "gpu-fraction",
    "gpu-fraction-limit",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "elasticgpu.io/container-a",
];

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (1_u64..=120).prop_map(|number| number.to_string()),
        2 => any::<u64>().prop_map(|number| number.to_string()),
        2 => "[0-9]{0,3}\\.?[0-9]{0,9}(e-?[0-9]{1,3})?(m|k|Ki|Gi|Ei)?",
        1 => select(vec!["0", "NaN", "inf", "-1", "", "online", "batch", "GPU-1,NVIDIA,1,1:;", "0,1"])
            .prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn named(names: &'static [&'static str], most: usize) -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(select(names).prop_map(str::to_owned), value(), 0..=most)
}

fn pods() -> impl Strategy<Value = Pod> {
    let containers = [named(&RESOURCES, 3), named(&RESOURCES, 1)];
    (containers, named(&LABELS, 1), named(&ANNOTATIONS, 2)).prop_map(|([first, second], labels, annotations)| {
        let container = |name: &str, resources| Container { name: name.into(), resources };
        Pod { labels, annotations, containers: vec![container("a", first), container("b", second)] }
    })
}

fn nodes() -> impl Strategy<Value = NodeFacts> {
    let policy = select(vec![QgpuPolicy::BestEffort, QgpuPolicy::FixedShare, QgpuPolicy::BurstShare]);
    (any::<u64>(), any::<u64>(), policy, any::<u32>(), any::<u32>()).prop_map(
        |(own, gpushare, policy, slots, replicas)| NodeFacts {
            memory_unit_bytes: own >> (own % 64),
            core_memory_percent: own.is_multiple_of(3).then_some(slots % 128),
            whole_devices: own.is_multiple_of(2),
            gpushare_unit_bytes: gpushare >> (gpushare % 64),
            qgpu_policy: policy,
            slots_per_device: slots,
            nvidia_replicas: if replicas.is_multiple_of(2) { 1 } else { replicas },
            aws_vgpus: slots,
        },
    )
}

fn spoken() -> impl Strategy<Value = Spoken> {
    let dialects = prop::array::uniform11(any::<bool>());
    dialects.prop_filter_map("two dialects that clash", |chosen| {
        let chosen = Dialect::ALL.into_iter().zip(chosen).filter(|(_, chosen)| *chosen);
        Spoken::new(chosen.map(|(dialect, _)| dialect)).ok()
    })
}

/// The amount of one resource of a container, if it is a whole number and asks for something.
fn number(container: &Container, resource: &str) -> Option<u64> {
    quantity::whole(container.resources.get(resource)?).ok().filter(|amount| *amount > 0)
}

/// The percent of time that the container requests, over all its devices, if it names a percentage.
fn core_percent_asked(container: &Container) -> Option<u64> {
    [
        "aliquot.dev/gpu-core",
        "tencent.com/vcuda-core",
        "aliyun.com/gpu-core.percentage",
        "tke.cloud.tencent.com/qgpu-core",
        "elasticgpu.com/gpu-core",
        "elasticgpu.io/gpu-core",
    ]
    .into_iter()
    .find_map(|resource| number(container, resource))
}

/// The bytes of memory that the container requests of each device, if it names an amount.
fn memory_bytes_asked(container: &Container, node: &NodeFacts, dialect: Dialect) -> Option<u128> {
    let gpushare = if dialect == Dialect::Cgpu { 1 << 30 } else { node.gpushare_unit_bytes };
    [
        ("aliquot.dev/gpu-memory", node.memory_unit_bytes),
        ("aliyun.com/gpu-mem", gpushare),
        ("tke.cloud.tencent.com/qgpu-memory", 1 << 30),
        ("nvidia.com/gpumem", 1 << 20),
        ("volcano.sh/vgpu-memory", 1 << 20),
        ("volcano.sh/gpu-memory", 1 << 20),
        ("elasticgpu.com/gpu-memory", 1 << 20),
        ("elasticgpu.io/gpu-memory", 1_000_000),
    ]
    .into_iter()
    .find_map(|(resource, unit)| Some(u128::from(number(container, resource)?) * u128::from(unit)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn no_container_gets_more_than_it_asked_for(
        pod in pods(),
        node in nodes(),
        spoken in spoken(),
        index in 0_usize..3,
        device_memory_bytes in any::<u64>(),
    ) {
        if let Ok(Some(wish)) = spoken.translate(&pod, index, &node) {
            let container = &pod.containers[index];
            let part = wish.share.on(device_memory_bytes);
            prop_assert!(wish.devices >= 1);
            prop_assert!((1..=100).contains(&part.core_request_percent), "{part:?}");
            prop_assert!((part.core_request_percent..=100).contains(&part.core_limit_percent), "{part:?}");
            if let Some(percent) = core_percent_asked(container) {
                let total = u64::from(wish.devices) * u64::from(part.core_request_percent);
                prop_assert!(total <= percent, "{total} of {percent}");
            }
            let bytes = memory_bytes_asked(container, &node, wish.dialect).filter(|_| wish.share != Share::Whole);
            // Only cGPU divides what a container asks for among devices.
            let devices = if wish.dialect == Dialect::Cgpu { wish.devices } else { 1 };
            prop_assert!(bytes.is_none_or(|bytes| u128::from(devices) * u128::from(part.memory_bytes) <= bytes));
            let placed = Placed { device_index: 0, device_memory_bytes, part };
            prop_assert!(wish.environment(&[placed; 2]).iter().all(|(name, _)| !name.is_empty()));
            prop_assert!(wish.environment(&[]).len() <= wish.environment(&[placed]).len());
        }
    }

    #[test]
    fn kubelet_hands_out_a_device_to_whom_a_request_is_granted(
        pod in pods(),
        node in nodes(),
        spoken in spoken(),
        index in 0_usize..2,
    ) {
        if let Ok(Some(wish)) = spoken.translate(&pod, index, &node) {
            let offered = wish.dialect.advertised(&node);
            let is_offered = |name: &str| offered.iter().any(|of| match of.unit {
                Unit::MigInstance => name.starts_with(of.resource),
                _ => name == of.resource,
            });
            let resources = &pod.containers[index].resources;
            prop_assert!(resources.iter().any(|(name, amount)| is_offered(name) && amount != "0"), "{resources:?}");
        }
    }

    #[test]
    fn refusals_name_what_was_wrong(pod in pods(), node in nodes(), spoken in spoken(), index in 0_usize..2) {
        if let Err(refusal) = spoken.translate(&pod, index, &node) {
            let text = refusal.to_string();
            let keys = pod.containers.iter().flat_map(|container| container.resources.keys());
            let named = keys.chain(pod.labels.keys()).chain(pod.annotations.keys()).any(|key| text.contains(key.as_str()));
            prop_assert!(named, "{text}");
        }
    }

    #[test]
    fn replicas_of_a_device_fit_on_it(replicas in 2_u32..=100, device_memory_bytes in any::<u64>()) {
        let node = NodeFacts { nvidia_replicas: replicas, ..NodeFacts::default() };
        let resources = BTreeMap::from([("nvidia.com/gpu.shared".to_owned(), "1".to_owned())]);
        let pod = Pod { containers: vec![Container { name: "a".into(), resources }], ..Pod::default() };
        let wish = Spoken::new([Dialect::Nvidia]).unwrap().translate(&pod, 0, &node).unwrap().unwrap();
        let part = wish.share.on(device_memory_bytes);
        prop_assert!(u128::from(part.memory_bytes) * u128::from(replicas) <= u128::from(device_memory_bytes));
        prop_assert!(part.core_request_percent * replicas <= 100);
    }
}
