//! Which dialects a node understands, and which component chooses the device.

use std::collections::BTreeSet;

use aliquot_dialects::{Dialect, NodeFacts, Placement, Refusal, Spoken, Unit};

use crate::asking::{container, pod};

#[test]
fn a_container_that_asks_for_no_device_gets_none() {
    let pod = pod(&[container("a", &[("cpu", "1"), ("memory", "1Gi")])], &[("team", "x")]);
    let spoken = Spoken::new(Dialect::ALL.into_iter().filter(|d| !matches!(d, Dialect::Hami | Dialect::Cgpu)));
    let spoken = spoken.unwrap();
    assert_eq!(spoken.translate(&pod, 0, &NodeFacts::default()), Ok(None));
    assert_eq!(spoken.translate(&pod, 1, &NodeFacts::default()), Ok(None));
}

#[test]
fn a_dialect_that_is_not_spoken_is_refused_with_a_remedy() {
    let pod = pod(&[container("a", &[("tencent.com/vcuda-core", "100")])], &[]);
    let refusal = Spoken::new([]).unwrap().translate(&pod, 0, &NodeFacts::default()).unwrap_err();
    let (key, dialect) = ("tencent.com/vcuda-core".to_owned(), Dialect::GpuManager);
    assert_eq!(refusal, Refusal::NotSpoken { key, dialect, in_place_of: None });
    assert!(refusal.to_string().contains("add \"gpu-manager\" to the node's dialects"), "{refusal}");
}

#[test]
fn words_of_a_sibling_dialect_are_not_those_of_two_systems() {
    let of_hami = [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "1024")];
    let of_cgpu = [("aliyun.com/gpu-core.percentage", "15"), ("aliyun.com/gpu-mem", "8")];
    let of_nvidia = [("nvidia.com/mig-1g.10gb", "1")];
    for (spoken, resources, key, dialect, in_place_of) in [
        (Some(Dialect::Nvidia), &of_hami[..], "nvidia.com/gpumem", Dialect::Hami, Some(Dialect::Nvidia)),
        (Some(Dialect::Nvidia), &of_hami[1..], "nvidia.com/gpumem", Dialect::Hami, Some(Dialect::Nvidia)),
        (Some(Dialect::Hami), &of_nvidia, "nvidia.com/mig-1g.10gb", Dialect::Nvidia, Some(Dialect::Hami)),
        (Some(Dialect::GpuShare), &of_cgpu, of_cgpu[0].0, Dialect::Cgpu, Some(Dialect::GpuShare)),
        // The word that both have is not taken for one of the other system.
        (None, &of_hami, "nvidia.com/gpu", Dialect::Hami, None),
    ] {
        let pod = pod(&[container("a", resources)], &[]);
        let refusal = Spoken::new(spoken).unwrap().translate(&pod, 0, &NodeFacts::default()).unwrap_err();
        assert_eq!(refusal, Refusal::NotSpoken { key: key.into(), dialect, in_place_of }, "{refusal}");
        let (name, text) = (dialect.name(), refusal.to_string());
        match in_place_of {
            Some(other) => assert!(text.contains(&format!("write \"{name}\" in place of \"{other}\"")), "{text}"),
            None => assert!(text.contains(&format!("add \"{name}\" to the node's dialects")), "{text}"),
        }
    }
}

#[test]
fn two_systems_in_one_container_are_refused_whether_spoken_or_not() {
    let resources = [("aliquot.dev/gpu-core", "30"), ("volcano.sh/vgpu-number", "1")];
    let pod = pod(&[container("a", &resources)], &[]);
    for dialects in [vec![], vec![Dialect::Volcano]] {
        let refusal = Spoken::new(dialects).unwrap().translate(&pod, 0, &NodeFacts::default()).unwrap_err();
        assert!(matches!(refusal, Refusal::Mixed { .. }), "{refusal}");
        assert!(refusal.to_string().contains("volcano.sh/vgpu-number (Volcano vGPU)"), "{refusal}");
    }
}

#[test]
fn two_containers_of_a_pod_may_ask_in_different_words() {
    let containers =
        [container("a", &[("aliquot.dev/gpu-core", "30")]), container("b", &[("volcano.sh/vgpu-number", "1")])];
    let pod = pod(&containers, &[]);
    let spoken = Spoken::new([Dialect::Volcano]).unwrap();
    let of = |index| spoken.translate(&pod, index, &NodeFacts::default()).unwrap().unwrap().dialect;
    assert_eq!([of(0), of(1)], [Dialect::Own, Dialect::Volcano]);
}

#[test]
fn dialects_that_share_a_resource_name_clash() {
    let clash = Spoken::new([Dialect::Hami, Dialect::Nvidia]).unwrap_err();
    assert_eq!(
        clash.to_string(),
        "a node cannot accept both dialects nvidia and hami: both have the resource nvidia.com/gpu; choose one"
    );
    assert!(Spoken::new([Dialect::GpuShare, Dialect::Cgpu]).is_err());
}

#[test]
fn only_the_names_of_dialects_are_parsed() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.name().parse(), Ok(dialect));
        assert_eq!(dialect.to_string(), dialect.name());
    }
    let error = "HAMi".parse::<Dialect>().unwrap_err();
    assert!(error.to_string().starts_with("\"HAMi\" is not a dialect; the dialects are aliquot, nvidia"), "{error}");
}

#[test]
fn each_dialect_names_what_chooses_the_device() {
    for dialect in Dialect::ALL {
        let expected = match dialect {
            Dialect::Own | Dialect::Nvidia | Dialect::Cgpu | Dialect::Qgpu | Dialect::Kai | Dialect::AwsVgpu => {
                Placement::Node
            }
            Dialect::GpuManager => Placement::Theirs { annotation: "tencent.com/predicate-gpu-idx-" },
            Dialect::GpuShare => Placement::Theirs { annotation: "ALIYUN_COM_GPU_MEM_IDX" },
            Dialect::Hami => Placement::Theirs { annotation: "hami.io/vgpu-devices-allocated" },
            Dialect::Volcano => Placement::Theirs { annotation: "volcano.sh/vgpu-ids-new" },
            Dialect::ElasticGpu => Placement::Theirs { annotation: "elasticgpu.io/container-" },
        };
        assert_eq!(dialect.placement(), expected, "{dialect}");
        assert!(!dialect.advertised(&NodeFacts::default()).is_empty(), "{dialect}");
    }
}

#[test]
fn advertised_resources_are_understood() {
    let node = NodeFacts { whole_devices: true, ..NodeFacts::default() };
    for dialect in Dialect::ALL {
        let spoken = Spoken::new([dialect]).unwrap();
        let mut names = BTreeSet::new();
        for advertised in dialect.advertised(&node) {
            assert!(names.insert(advertised.resource), "{} twice", advertised.resource);
            let name = match advertised.unit {
                Unit::MigInstance => format!("{}1g.10gb", advertised.resource),
                _ => advertised.resource.to_owned(),
            };
            let pod = pod(&[container("a", &[(&name, "10")])], &[]);
            let answer = spoken.translate(&pod, 0, &node);
            assert!(!matches!(answer, Ok(None) | Err(Refusal::NotSpoken { .. })), "{name}: {answer:?}");
        }
    }
}
