//! What is certain before a pod has a node.

use aliquot_dialects::{Dialect, NodeFacts, Pod, Refusal, Spoken, Unit};

use crate::asking::{Pairs, container, pod};

fn refused(resources: Pairs<'_>, annotations: Pairs<'_>) -> Option<String> {
    pod(&[container("main", resources)], annotations).refused_everywhere(0).map(|refusal| refusal.to_string())
}

#[test]
fn what_no_node_understands_is_refused_with_its_reason() {
    for (resources, annotations, words) in [
        (&[("aliquot.dev/gpu-core", "0")][..], &[][..], "aliquot.dev/gpu-core is \"0\""),
        (&[("aliquot.dev/gpu-core", "NaN")], &[], "\"NaN\"; it must be a whole number"),
        (&[("aliquot.dev/gpu-core", "30")], &[("aliquot.dev/gpu-core-limit", "20")], "which is 30"),
        (&[("nvidia.com/gpu.shared", "2")], &[], "nvidia.com/gpu.shared is \"2\"; it must be 1 to 1"),
        (&[("tencent.com/vcuda-core", "30")], &[], "has no effect without tencent.com/vcuda-memory"),
        (&[("aliyun.com/gpu-mem", "-1")], &[], "aliyun.com/gpu-mem is \"-1\""),
        (&[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-core.percentage", "12")], &[], "a multiple of 5"),
        (&[("tke.cloud.tencent.com/qgpu-core", "7")], &[], "a multiple of 5"),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "101")], &[], "nvidia.com/gpucores is \"101\""),
        (&[("volcano.sh/vgpu-number", "1"), ("volcano.sh/vgpu-memory", "0")], &[], "volcano.sh/vgpu-memory is \"0\""),
        // A 0 is a mistake in Aliquot's own words, and beside another amount of the same system.
        (&[("aliquot.dev/gpu", "0")], &[], "aliquot.dev/gpu is \"0\""),
        (&[("aliquot.dev/gpu-core", "0"), ("aliquot.dev/gpu-memory", "4")], &[], "aliquot.dev/gpu-core is \"0\""),
        (&[("aliquot.dev/gpu-core", "0"), ("nvidia.com/gpu", "0")], &[], "aliquot.dev/gpu-core is \"0\""),
        (&[("nvidia.com/gpu", "0"), ("nvidia.com/gpumem", "1024")], &[], "nvidia.com/gpu is \"0\""),
        (&[("tencent.com/vcuda-core", "0"), ("tencent.com/vcuda-memory", "4")], &[], "vcuda-core is \"0\""),
        (&[("aliyun.com/gpu-mem", "0"), ("aliyun.com/gpu-core.percentage", "15")], &[], "gpu-mem is \"0\""),
        (&[("elasticgpu.io/gpu-core", "150")], &[], "elasticgpu.io/gpu-core is \"150\""),
        (&[("k8s.amazonaws.com/vgpu", "49")], &[], "1 to 48"),
        (&[], &[("gpu-fraction", "1.5")], "gpu-fraction is \"1.5\""),
        (&[("aliquot.dev/gpu-core", "30"), ("nvidia.com/gpumem", "1")], &[], "are of two systems"),
        (&[("aliyun.com/gpu-mem", "1"), ("nvidia.com/gpumem", "1")], &[], "are of two systems"),
        (&[("aliquot.dev/gpu-core", "30")], &[("gpu-fraction", "0.5")], "are of two systems"),
    ] {
        let reason = refused(resources, annotations).unwrap_or_default();
        assert!(reason.contains(words), "{resources:?} {annotations:?}: {reason:?} lacks {words:?}");
    }
}

#[test]
fn what_some_node_understands_is_not_refused() {
    for resources in [
        &[("cpu", "0")][..],
        &[("aliquot.dev/gpu-core", "30")],
        &[("aliquot.dev/gpu-memory", "15E")],
        &[("aliquot.dev/gpu", "2")],
        // In the dialects of NVIDIA and of HAMi.
        &[("nvidia.com/gpu", "1")],
        &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "1024")],
        &[("nvidia.com/mig-1g.10gb", "1")],
        &[("nvidia.com/gpu.shared", "1")],
        // In the dialects of GPUShare and of cGPU.
        &[("aliyun.com/gpu-mem", "8")],
        &[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-core.percentage", "15")],
        &[("k8s.amazonaws.com/vgpu", "48")],
    ] {
        assert_eq!(refused(resources, &[]), None, "{resources:?}");
    }
}

#[test]
fn no_request_that_a_node_understands_is_refused_everywhere() {
    let values = ["0", "1", "5", "30", "100", "150", "200"];
    let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
    let names: Vec<&str> =
        Dialect::ALL.into_iter().flat_map(|dialect| dialect.advertised(&facts)).map(|of| of.resource).collect();
    for (first, second) in names.iter().flat_map(|first| names.iter().map(move |second| (*first, *second))) {
        for value in values {
            let pod = pod(&[container("main", &[(first, value), (second, value)])], &[]);
            let is_understood = Dialect::ALL.into_iter().any(|dialect| {
                let answer = Spoken::new([dialect]).unwrap().translate(&pod, 0, &facts);
                matches!(answer, Ok(Some(_)))
            });
            let refusal = pod.refused_everywhere(0);
            assert!(!is_understood || refusal.is_none(), "{first} {second} {value}: {refusal:?}");
            assert!(!matches!(refusal, Some(Refusal::NotSpoken { .. })), "{first} {second}: it is a name of a system");
        }
    }
}

#[test]
fn values_of_annotations_are_checked_without_a_container() {
    let annotated =
        |key: &str, value: &str| Pod { annotations: [(key.to_owned(), value.to_owned())].into(), ..Pod::default() };
    for (key, value) in [
        ("aliquot.dev/gpu-core-limit", "NaN"),
        ("aliquot.dev/gpu-core-limit", "0"),
        ("aliquot.dev/priority-class", "high"),
    ] {
        let refusal = annotated(key, value).check_annotations().unwrap_err().to_string();
        assert!(refusal.contains(&format!("{key} is {value:?}")), "{refusal}");
    }
    assert_eq!(annotated("aliquot.dev/gpu-core-limit", "100").check_annotations(), Ok(()));
    assert_eq!(annotated("aliquot.dev/priority-class", "batch").check_annotations(), Ok(()));
}

#[test]
fn amounts_for_each_device_want_a_number_of_devices() {
    for (resources, resource) in [
        (&[("nvidia.com/gpumem", "1024")][..], Some("nvidia.com/gpu")),
        (&[("nvidia.com/gpucores", "30")], Some("nvidia.com/gpu")),
        (&[("nvidia.com/gpumem", "1024"), ("nvidia.com/gpu", "2")], None),
        // Neither a priority alone nor amounts of 0 ask for anything.
        (&[("nvidia.com/priority", "0")], None),
        (&[("nvidia.com/gpumem", "0"), ("nvidia.com/gpucores", "0")], None),
        // This is refused, and not made right.
        (&[("nvidia.com/gpumem", "1024"), ("nvidia.com/gpu", "0")], None),
        (&[("volcano.sh/vgpu-memory", "1024")], Some("volcano.sh/vgpu-number")),
        (&[("volcano.sh/vgpu-memory", "1024"), ("volcano.sh/vgpu-number", "1")], None),
        (&[("volcano.sh/gpu-memory", "1024")], None),
        (&[("aliquot.dev/gpu-core", "30")], None),
        (&[("aliyun.com/gpu-mem", "8")], None),
        (&[("cpu", "1")], None),
    ] {
        assert_eq!(pod(&[container("main", resources)], &[]).left_out(0), resource, "{resources:?}");
    }
}

#[test]
fn who_asks_in_any_words_asks_for_devices() {
    let asks = |resources: Pairs<'_>, annotations: Pairs<'_>| {
        pod(&[container("main", resources)], annotations).asks_for_devices(0)
    };
    for dialect in Dialect::ALL {
        for advertised in dialect.advertised(&NodeFacts { whole_devices: true, ..NodeFacts::default() }) {
            let name = format!("{}1g.10gb", advertised.resource);
            let name = if advertised.unit == Unit::MigInstance { name.as_str() } else { advertised.resource };
            assert!(asks(&[(name, "1")], &[]), "{name}");
        }
    }
    assert!(asks(&[], &[("gpu-fraction", "0.5")]));
    assert!(!asks(&[("cpu", "1"), ("example.com/nic", "1")], &[("team", "x")]));
    assert!(!Pod::default().asks_for_devices(0));
}

#[test]
fn amounts_of_0_in_other_systems_words_ask_for_nothing() {
    let asked = |resources: Pairs<'_>, annotations: Pairs<'_>| {
        let pod = pod(&[container("main", resources)], annotations);
        (pod.asks_for_devices(0), pod.refused_everywhere(0).map(|refusal| refusal.to_string()), pod.left_out(0))
    };
    let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
    for advertised in Dialect::ALL.into_iter().flat_map(|dialect| dialect.advertised(&facts)) {
        let is_own = advertised.resource.starts_with("aliquot.dev/");
        for amount in ["0", "0k", "0.0"] {
            let (asks, refused, left_out) = asked(&[(advertised.resource, amount)], &[]);
            assert_eq!((asks, left_out), (is_own, None), "{} {amount}", advertised.resource);
            assert_eq!(refused.is_some(), is_own, "{} {amount}: {refused:?}", advertised.resource);
        }
    }
    let none = (false, None, None);
    assert_eq!(asked(&[("nvidia.com/gpu", "0"), ("nvidia.com/gpumem", "0"), ("nvidia.com/gpucores", "0")], &[]), none);
    assert_eq!(asked(&[("nvidia.com/gpu", "0"), ("nvidia.com/priority", "1")], &[]), none);
    assert_eq!(asked(&[("tencent.com/vcuda-core", "0"), ("tencent.com/vcuda-memory", "0")], &[]), none);
    // So such amounts stand beside words that ask for something.
    assert_eq!(asked(&[("aliquot.dev/gpu-core", "30"), ("nvidia.com/gpu", "0")], &[]), (true, None, None));
    let half = ("gpu-fraction", "0.5");
    let left_out = Some("aliquot.dev/kai-gpu");
    assert_eq!(asked(&[("nvidia.com/gpu", "0")], &[half]).2, left_out);
    assert_eq!(asked(&[("nvidia.com/gpu", "0"), ("aliquot.dev/kai-gpu", "1")], &[half]), (true, None, None));
}
