//! The admission policy for requests of the scheduler's pods, compared with the code that reads these requests.

use std::collections::{BTreeMap, HashMap};

use aliquot_deployment::object;
use aliquot_dialects::{Container, Dialect, NodeFacts, Pod, Spoken};
use aliquot_test_api_server::conditions::{evaluate, value};
use cel::Value as CelValue;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec};
use serde_json::{Value, json};

/// The policy, evaluated for pods.
struct Policy(ValidatingAdmissionPolicySpec);

impl Policy {
    fn shipped() -> Policy {
        let policy: ValidatingAdmissionPolicy = object("scheduler", "aliquot-scheduler-requests");
        Policy(policy.spec.unwrap())
    }

    /// Why a pod is refused.
    fn refuses(&self, pod: &Value) -> Option<String> {
        let evaluate = |expression: &str, variables: &HashMap<String, CelValue>| {
            evaluate(expression, [("object", value(pod)), ("variables", variables.clone().into())])
                .unwrap_or_else(|error| panic!("{error}"))
        };
        let mut variables = HashMap::new();
        let conditions = self.0.match_conditions.iter().flatten();
        if conditions.into_iter().any(|it| evaluate(&it.expression, &variables) == CelValue::Bool(false)) {
            return None;
        }
        for variable in self.0.variables.iter().flatten() {
            let found = evaluate(&variable.expression, &variables);
            variables.insert(variable.name.clone(), found);
        }
        let validations = self.0.validations.iter().flatten();
        let mut refused = validations.filter(|it| evaluate(&it.expression, &variables) != CelValue::Bool(true));
        refused.next().map(|it| match evaluate(it.message_expression.as_deref().unwrap(), &variables) {
            CelValue::String(text) => text.to_string(),
            other => panic!("{other:?} is no message"),
        })
    }
}

fn pod(limits: &[(&str, &str)], annotations: &[(&str, &str)]) -> Value {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    json!({
        "metadata": {"name": "p", "annotations": map(annotations)},
        "spec": {
            "schedulerName": "aliquot",
            "containers": [{"name": "side"}, {"name": "main", "resources": {"limits": map(limits)}}],
        },
    })
}

#[test]
fn what_can_never_be_given_is_refused_with_a_reason() {
    let policy = Policy::shipped();
    for (limits, annotations, reason) in [
        (&[("aliquot.dev/gpu-core", "0")][..], &[][..], "aliquot.dev/gpu-core is 0;"),
        (&[("aliquot.dev/gpu-core", "150")], &[], "aliquot.dev/gpu-core is 150;"),
        (&[("aliquot.dev/gpu-core", "0"), ("aliquot.dev/gpu-memory", "4")], &[], "aliquot.dev/gpu-core is 0;"),
        (&[("nvidia.com/gpu", "0"), ("nvidia.com/gpumem", "1024")], &[], "nvidia.com/gpu is 0;"),
        (&[("tencent.com/vcuda-core", "30"), ("tencent.com/vcuda-memory", "0")], &[], "vcuda-memory is 0;"),
        (&[("tke.cloud.tencent.com/qgpu-core", "7")], &[], "qgpu-core is 7;"),
        (&[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-core.percentage", "12")], &[], "percentage is 12;"),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "101")], &[], "gpucores is 101;"),
        (&[("aliquot.dev/gpu-core", "30"), ("nvidia.com/gpumem", "1")], &[], "are of two systems"),
        (&[("aliquot.dev/gpu-core", "30"), ("aliquot.dev/kai-gpu", "1")], &[], "are of two systems"),
        (&[("aliquot.dev/gpu-core", "30")], &[("aliquot.dev/gpu-core-limit", "NaN")], "gpu-core-limit is \"NaN\""),
        (&[("aliquot.dev/gpu-core", "30")], &[("aliquot.dev/gpu-core-limit", "0")], "gpu-core-limit is \"0\""),
        (&[("aliquot.dev/gpu-core", "30")], &[("aliquot.dev/priority-class", "high")], "priority-class is \"high\""),
        (&[], &[("aliquot.dev/gang", "g")], "gang-size is \"\""),
        (&[], &[("aliquot.dev/gang", "g"), ("aliquot.dev/gang-size", "0")], "gang-size is \"0\""),
        (&[], &[("aliquot.dev/gang-size", "0")], "gang-size is \"0\""),
    ] {
        let refused = policy.refuses(&pod(limits, annotations)).unwrap_or_default();
        assert!(refused.contains(reason), "{limits:?} {annotations:?}: {refused:?}");
    }
}

#[test]
fn pods_of_others_and_without_devices_are_admitted() {
    let policy = Policy::shipped();
    let mut other = pod(&[("aliquot.dev/gpu-core", "0")], &[]);
    other["spec"]["schedulerName"] = "default-scheduler".into();
    let mut beside = pod(&[("nvidia.com/gpu", "1")], &[]);
    beside["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "0"}});
    let gang = [("aliquot.dev/gang", "g"), ("aliquot.dev/gang-size", "5")];
    let of_controller = [("aliquot.dev/gang-size", "5")];
    let plain = json!({"metadata": {"name": "p"}, "spec": {"schedulerName": "aliquot", "containers": [{"name": "a"}]}});
    for pod in [
        other,
        plain,
        pod(&[("cpu", "0"), ("memory", "1Gi")], &[]),
        pod(&[("nvidia.com/gpu", "0")], &[]),
        pod(&[("nvidia.com/gpu", "0"), ("nvidia.com/gpumem", "0"), ("nvidia.com/priority", "1")], &[]),
        pod(&[("aliquot.dev/gpu-core", "30"), ("nvidia.com/gpu", "0")], &[]),
        pod(&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "0")], &[]),
        beside,
        pod(&[("cpu", "1")], &gang),
        pod(&[], &of_controller),
    ] {
        assert_eq!(policy.refuses(&pod), None, "{pod}");
    }
}

/// Whether some node understands the pod's request.
fn is_understood(limits: &[(&str, &str)]) -> bool {
    let resources = limits.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let container = Container { name: "main".into(), resources };
    let pod = Pod { containers: vec![container], ..Pod::default() };
    let facts = NodeFacts { memory_unit_bytes: 1 << 20, gpushare_unit_bytes: 1 << 30, ..NodeFacts::default() };
    let facts = NodeFacts { slots_per_device: 10, aws_vgpus: 10, whole_devices: true, ..facts };
    // Devices are whole on the one and shared on the other.
    let nodes = [1, 10].map(|nvidia_replicas| NodeFacts { nvidia_replicas, ..facts.clone() });
    Dialect::ALL.into_iter().any(|dialect| {
        let spoken = Spoken::new([dialect]).unwrap();
        nodes.iter().any(|node| spoken.translate(&pod, 0, node).is_ok())
    })
}

#[test]
fn nothing_that_some_node_understands_is_refused() {
    let policy = Policy::shipped();
    let resources = [
        "aliquot.dev/gpu-core",
        "aliquot.dev/gpu-memory",
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "nvidia.com/gpumem-percentage",
        "tencent.com/vcuda-core",
        "tencent.com/vcuda-memory",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-core.percentage",
        "tke.cloud.tencent.com/qgpu-core",
        "tke.cloud.tencent.com/qgpu-memory",
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-cores",
        "elasticgpu.io/gpu-core",
        "k8s.amazonaws.com/vgpu",
        "aliquot.dev/kai-gpu",
        "example.com/other",
    ];
    let values = [("0", "1"), ("1", "0"), ("7", "30"), ("30", "100"), ("100", "200"), ("150", "5")];
    let after = |index: usize| resources[index + 1..].iter().copied();
    let pairs =
        resources.iter().enumerate().flat_map(|(index, first)| after(index).map(move |second| (*first, second)));
    let (mut refused, mut understood) = (0, 0);
    for (number, (first, second)) in pairs.enumerate() {
        let (one, two) = values[number % values.len()];
        let limits = [(first, one), (second, two)];
        let is_understood = is_understood(&limits);
        let reason = policy.refuses(&pod(&limits, &[]));
        assert!(reason.is_none() || !is_understood, "{limits:?}: {reason:?}");
        refused += usize::from(reason.is_some());
        understood += usize::from(is_understood);
    }
    assert!(refused > 80 && understood > 5, "{refused} refused, {understood} understood");
}
