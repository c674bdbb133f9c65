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
        (&[("volcano.sh/vgpu-number", "1"), ("volcano.sh/vgpu-cores", "0")], &[], "volcano.sh/vgpu-cores is \"0\""),
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
    let annotated = |key: &str, value: &str| Pod {
        annotations: [(key.to_owned(), value.to_owned())].into(),
        containers: Vec::new(),
    };
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
        // A priority alone asks for nothing.
        (&[("nvidia.com/priority", "0")], None),
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
