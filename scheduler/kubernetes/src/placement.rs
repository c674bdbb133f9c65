//! Where a pod may run: selectors, node affinity and tolerations in the words of the books.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Constraints, NodeOperator, NodeRequirement, NodeTerm, Preference, Preferences, Taint, TaintEffect, Toleration,
};
use k8s_openapi::api::core::v1 as core;

/// The field of nodes that affinity can name; the books have it as a label.
pub(crate) const NODE_NAME: &str = "metadata.name";

/// The features that nodes declare; the books have them as labels, with this before the name. No label of a user begins
/// like this.
pub(crate) const DECLARED_FEATURES: &str = "status.declaredFeatures/";

/// The feature of nodes that need not call the driver of a device.
pub(crate) const OPTIONAL_NODE_OPERATIONS: &str = "DRAOptionalNodeOperations";

/// Whether a node with these labels declares a feature.
pub(crate) fn declares(labels: &BTreeMap<String, String>, feature: &str) -> bool {
    labels.contains_key(&format!("{DECLARED_FEATURES}{feature}"))
}

/// The features that a node must declare for a pod. `spec`: all of it.
pub(crate) fn needed_features(spec: &core::PodSpec) -> BTreeSet<&'static str> {
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let restarts_all = |rule: &core::ContainerRestartRule| rule.action == "RestartAllContainers";
    let has_such_rule = containers().any(|of| of.restart_policy_rules.iter().flatten().any(restarts_all));
    let is_in_both = spec.host_network == Some(true) && spec.host_users == Some(false);
    let has_options = |of: &core::VolumeMount| of.bind_mount_options.as_ref().is_some_and(|of| !of.is_empty());
    let binds_with_options = containers().flat_map(|of| of.volume_mounts.iter().flatten()).any(has_options);
    let needed = [
        ("RestartAllContainersOnContainerExits", has_such_rule),
        ("UserNamespacesHostNetworkSupport", is_in_both),
        ("VolumeBindMountOptions", binds_with_options),
    ];
    needed.into_iter().filter(|(_, is_needed)| *is_needed).map(|(name, _)| name).collect()
}

/// Terms that match the nodes that declare these features; empty: all nodes.
pub(crate) fn declare(features: &BTreeSet<&'static str>) -> BTreeSet<NodeTerm> {
    let declares =
        |name: &&str| NodeRequirement { key: format!("{DECLARED_FEATURES}{name}"), operator: NodeOperator::Exists };
    let term = NodeTerm { requirements: features.iter().map(declares).collect() };
    (!features.is_empty()).then_some(term).into_iter().collect()
}

/// Whether a node with these labels, its name among them, matches one of the terms. Without terms each node does.
pub(crate) fn admit(terms: &BTreeSet<NodeTerm>, labels: &BTreeMap<String, String>) -> bool {
    terms.is_empty() || terms.iter().any(|term| matches(term, labels))
}

/// Whether a node with these labels meets a term.
pub(crate) fn matches(NodeTerm { requirements }: &NodeTerm, labels: &BTreeMap<String, String>) -> bool {
    let value = |key: &String| labels.get(key).map(String::as_str);
    !requirements.is_empty() && requirements.iter().all(|of| of.holds(value(&of.key)))
}

fn effect(name: &str) -> Option<TaintEffect> {
    match name {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        _ => None,
    }
}

/// The taints of a node, without taints of an effect that Kubernetes does not know.
pub(crate) fn taints(taints: &[core::Taint]) -> Vec<Taint> {
    let taint = |taint: &core::Taint| {
        let value = taint.value.clone().unwrap_or_default();
        Some(Taint { key: taint.key.clone(), value, effect: effect(&taint.effect)? })
    };
    taints.iter().filter_map(taint).collect()
}

/// The taints of all nodes whose values are numbers, each with the number of its nodes. Tolerations compare with them.
#[derive(Debug, Default)]
pub(crate) struct NumberedTaints(BTreeMap<Taint, usize>);

impl NumberedTaints {
    /// A node has other taints than before. Returns whether there is one now that no node had.
    pub(crate) fn exchange(&mut self, before: &[Taint], now: &[Taint]) -> bool {
        let is_numbered = |taint: &&Taint| decimal(&taint.value).is_some();
        let mut has_more = false;
        for taint in now.iter().filter(is_numbered) {
            let nodes = self.0.entry(taint.clone()).or_default();
            *nodes += 1;
            has_more |= *nodes == 1;
        }
        for taint in before.iter().filter(is_numbered) {
            if let Some(nodes) = self.0.get_mut(taint) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.0.remove(taint);
                }
            }
        }
        has_more
    }
}

/// Which nodes a pod may be on. `taints`: those of all nodes.
///
/// # Errors
/// What the pod asks for that is not supported.
pub(crate) fn constraints(spec: &core::PodSpec, taints: &NumberedTaints) -> Result<Constraints, String> {
    let (labels, node_terms) = selected_nodes(spec)?;
    Ok(Constraints { labels, node_terms, tolerations: tolerations(spec, taints)?, ..Constraints::default() })
}

/// Which nodes a pod prefers.
///
/// # Errors
/// What of it is not supported.
pub(crate) fn preferences(spec: &core::PodSpec) -> Result<Option<Arc<Preferences>>, String> {
    let of_nodes = spec.affinity.as_ref().and_then(|of| of.node_affinity.as_ref());
    let preferred = of_nodes.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_ref());
    let preference = |of: &core::PreferredSchedulingTerm| {
        let weight = u8::try_from(of.weight.clamp(0, 100)).unwrap_or_default();
        Ok(Preference { weight, term: term(&of.preference)? })
    };
    let all = preferred.into_iter().flatten().map(preference).collect::<Result<Vec<_>, String>>()?;
    Ok((!all.is_empty()).then(|| Arc::new(Preferences(all))))
}

/// The labels that a pod's node must have, and the terms of which the node must match one.
///
/// # Errors
/// Which part of the node affinity is not supported.
pub(crate) fn selected_nodes(spec: &core::PodSpec) -> Result<(BTreeMap<String, String>, BTreeSet<NodeTerm>), String> {
    let of_nodes = spec.affinity.as_ref().and_then(|of| of.node_affinity.as_ref());
    let selector = of_nodes.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    let node_terms = selector.map(terms).transpose()?.unwrap_or_default();
    Ok((spec.node_selector.clone().unwrap_or_default(), node_terms))
}

/// What a pod tolerates. A toleration that compares numbers becomes one of each of the taints that it tolerates.
///
/// # Errors
/// Which operator is not supported.
pub(crate) fn tolerations(spec: &core::PodSpec, taints: &NumberedTaints) -> Result<BTreeSet<Toleration>, String> {
    let mut all = BTreeSet::new();
    for of in spec.tolerations.iter().flatten() {
        match operator(of) {
            "Equal" | "Exists" => all.extend(toleration(of)),
            "Gt" | "Lt" => {
                let tolerated = taints.0.keys().filter(|taint| tolerates_number(of, taint));
                all.extend(tolerated.map(Toleration::of));
            }
            other => {
                return Err(format!(
                    "the toleration of {:?} has the operator {other:?}, which is not supported",
                    of.key.as_deref().unwrap_or_default()
                ));
            }
        }
    }
    Ok(all)
}

/// Whether a pod has a toleration that compares numbers.
pub(crate) fn compares_taints(spec: &core::PodSpec) -> bool {
    spec.tolerations.iter().flatten().any(|of| ["Gt", "Lt"].contains(&operator(of)))
}

/// The operator of a toleration: without one, values are equal.
fn operator(of: &core::Toleration) -> &str {
    of.operator.as_deref().filter(|operator| !operator.is_empty()).unwrap_or("Equal")
}

/// Whether a toleration that compares numbers tolerates a taint. What is no number is neither greater nor less.
fn tolerates_number(of: &core::Toleration, taint: &Taint) -> bool {
    let is =
        |asked: &Option<String>, there: &str| asked.as_deref().is_none_or(|asked| asked.is_empty() || asked == there);
    let (asked, there) = (of.value.as_deref().and_then(decimal), decimal(&taint.value));
    let (Some(asked), Some(there)) = (asked, there) else { return false };
    let holds = if operator(of) == "Gt" { there > asked } else { there < asked };
    holds && is(&of.key, &taint.key) && is(&of.effect, &taint.effect.to_string())
}

/// A whole number as Kubernetes writes it: without a plus sign, and without zeros in front.
fn decimal(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

/// The terms of a selector, of which nodes must match one.
///
/// # Errors
/// What of it is not supported.
pub(crate) fn terms(selector: &core::NodeSelector) -> Result<BTreeSet<NodeTerm>, String> {
    selector.node_selector_terms.iter().map(term).collect()
}

/// Terms that match the nodes that both sets match: each term of one set together with each term of the other. An empty
/// set asks for nothing, so it matches all nodes.
pub(crate) fn both(one: BTreeSet<NodeTerm>, other: &BTreeSet<NodeTerm>) -> BTreeSet<NodeTerm> {
    if one.is_empty() || other.is_empty() {
        return if one.is_empty() { other.clone() } else { one };
    }
    let together = |a: &NodeTerm, b: &NodeTerm| {
        let requirements = a.requirements.union(&b.requirements).cloned().collect();
        // A term without requirements matches no node, also together with another one.
        let matches_none = a.requirements.is_empty() || b.requirements.is_empty();
        (!matches_none).then_some(NodeTerm { requirements })
    };
    let terms: BTreeSet<NodeTerm> = one.iter().flat_map(|a| other.iter().filter_map(move |b| together(a, b))).collect();
    if terms.is_empty() { BTreeSet::from([NodeTerm::default()]) } else { terms }
}

fn toleration(of: &core::Toleration) -> Option<Toleration> {
    let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let effect = match named(&of.effect) {
        None => None,
        // The pod tolerates an effect that no node's taint has.
        Some(name) => Some(effect(&name)?),
    };
    let exists = operator(of) == "Exists";
    let value = if exists { None } else { Some(of.value.clone().unwrap_or_default()) };
    Some(Toleration { key: named(&of.key), value, effect })
}

fn term(term: &core::NodeSelectorTerm) -> Result<NodeTerm, String> {
    let expressions = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let requirements = expressions.chain(fields).map(requirement).collect::<Result<BTreeSet<_>, String>>()?;
    Ok(NodeTerm { requirements })
}

fn requirement(of: &core::NodeSelectorRequirement) -> Result<NodeRequirement, String> {
    let values = || of.values.iter().flatten().cloned().collect::<BTreeSet<String>>();
    let number = || match of.values.as_deref() {
        Some([value]) => value
            .parse()
            .map_err(|_| format!("node affinity compares {} with {value:?}, which is no whole number", of.key)),
        _ => Err(format!("node affinity compares {} with other than one value", of.key)),
    };
    let operator = match of.operator.as_str() {
        "In" => NodeOperator::In(values()),
        "NotIn" => NodeOperator::NotIn(values()),
        "Exists" => NodeOperator::Exists,
        "DoesNotExist" => NodeOperator::DoesNotExist,
        "Gt" => NodeOperator::GreaterThan(number()?),
        "Lt" => NodeOperator::LessThan(number()?),
        other => return Err(format!("node affinity has the operator {other:?}, which is not supported")),
    };
    Ok(NodeRequirement { key: of.key.clone(), operator })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> Result<Constraints, String> {
        let mut spec = spec;
        spec["containers"] = spec.get("containers").cloned().unwrap_or(json!([]));
        constraints(&serde_json::from_value(spec).unwrap(), &NumberedTaints::default())
    }

    #[test]
    fn tolerations_compare_numbers_as_kubernetes_does() {
        let mut taints = NumberedTaints::default();
        let taint = |value: &str, effect| Taint { key: "sla".into(), value: value.into(), effect };
        let of_node = ["950", "99", "007", "low"].map(|value| taint(value, TaintEffect::NoSchedule));
        assert!(taints.exchange(&[], &of_node));
        assert!(!taints.exchange(&[], &of_node[..1]), "another node has this one already");
        let tolerated = |of: Value| {
            let spec = json!({"containers": [], "tolerations": [of]});
            let found = tolerations(&serde_json::from_value(spec).unwrap(), &taints).unwrap();
            found.into_iter().map(|of| of.value.unwrap()).collect::<Vec<String>>()
        };
        let compared = |operator: &str, value: &str| {
            tolerated(json!({"key": "sla", "operator": operator, "value": value, "effect": "NoSchedule"}))
        };
        // Not as texts, and of numbers only those without zeros in front.
        assert_eq!(compared("Gt", "100"), ["950"]);
        assert_eq!(compared("Lt", "950"), ["99"]);
        assert_eq!(compared("Gt", "0"), ["950", "99"]);
        assert!(
            compared("Gt", "950").is_empty() && compared("Lt", "low").is_empty() && compared("Lt", "0999").is_empty()
        );
        assert!(tolerated(json!({"key": "other", "operator": "Gt", "value": "0"})).is_empty());
        assert!(tolerated(json!({"key": "sla", "operator": "Gt", "value": "0", "effect": "NoExecute"})).is_empty());
        assert_eq!(tolerated(json!({"key": "sla", "operator": "Gt", "value": "0"})), ["950", "99"]);
        taints.exchange(&of_node, &[]);
        assert_eq!(taints.0.len(), 1, "one node has one of them still");
    }

    #[test]
    fn pods_need_the_features_that_they_use() {
        let needed = |spec: Value| needed_features(&serde_json::from_value(spec).unwrap()).into_iter().collect();
        let of = |more: Value| -> Vec<&str> {
            let mut spec = json!({"containers": [{"name": "main"}]});
            json_patch::merge(&mut spec, &more);
            needed(spec)
        };
        let rules = |action: &str| json!([{"name": "first", "restartPolicyRules": [{"action": action}]}]);
        assert!(of(json!({"hostNetwork": true})).is_empty() && of(json!({"hostUsers": false})).is_empty());
        assert!(of(json!({"initContainers": rules("Restart")})).is_empty());
        let restarts_all = ["RestartAllContainersOnContainerExits"];
        assert_eq!(of(json!({"initContainers": rules("RestartAllContainers")})), restarts_all);
        assert_eq!(of(json!({"containers": rules("RestartAllContainers")})), restarts_all);
        assert_eq!(of(json!({"hostNetwork": true, "hostUsers": false})), ["UserNamespacesHostNetworkSupport"]);
    }

    #[test]
    fn tolerations_of_unknown_operators_are_refused() {
        let why = of(json!({"tolerations": [{"key": "team", "operator": "Near", "value": "a"}]})).unwrap_err();
        assert!(why.contains("\"team\"") && why.contains("\"Near\""), "{why}");
    }

    #[test]
    fn preferred_nodes_are_read() {
        let of = |terms: Value| {
            let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}});
            preferences(&serde_json::from_value(json!({"containers": [], "affinity": affinity})).unwrap())
        };
        let zone =
            |operator: &str| json!({"matchExpressions": [{"key": "zone", "operator": operator, "values": ["a"]}]});
        let found = of(json!([{"weight": 30, "preference": zone("In")}])).unwrap().unwrap();
        let requirements =
            BTreeSet::from([NodeRequirement { key: "zone".into(), operator: NodeOperator::In(["a".into()].into()) }]);
        assert_eq!(found.0, [Preference { weight: 30, term: NodeTerm { requirements } }]);
        assert_eq!(of(json!([])), Ok(None));
        assert!(of(json!([{"weight": 1, "preference": zone("Near")}])).unwrap_err().contains("\"Near\""));
    }

    #[test]
    fn selectors_affinity_and_tolerations_are_read() {
        let found = of(json!({
            "nodeSelector": {"zone": "a"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [
                    {"key": "gpu", "operator": "In", "values": ["h100", "h200"]},
                    {"key": "rank", "operator": "Gt", "values": ["3"]},
                ], "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]},
            ]}}},
            "tolerations": [
                {"operator": "Exists"},
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "team", "value": "a", "effect": "PreferNoSchedule"},
                {"key": "team", "operator": "Equal", "value": "a"},
            ],
        }))
        .unwrap();
        assert_eq!(found.labels, BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
        let requirement = |key: &str, operator| NodeRequirement { key: key.to_owned(), operator };
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<String>>();
        let term = NodeTerm {
            requirements: BTreeSet::from([
                requirement("gpu", NodeOperator::In(texts(&["h100", "h200"]))),
                requirement("rank", NodeOperator::GreaterThan(3)),
                requirement("metadata.name", NodeOperator::NotIn(texts(&["bad"]))),
            ]),
        };
        assert_eq!(found.node_terms, BTreeSet::from([term]));
        let named = |text: &str| Some(text.to_owned());
        let expected = BTreeSet::from([
            Toleration { key: None, value: None, effect: None },
            Toleration { key: named("gpu"), value: None, effect: Some(TaintEffect::NoSchedule) },
            Toleration { key: named("team"), value: named("a"), effect: Some(TaintEffect::PreferNoSchedule) },
            Toleration { key: named("team"), value: named("a"), effect: None },
        ]);
        assert_eq!(found.tolerations, expected);
    }

    #[test]
    fn terms_together_ask_for_what_each_asks_for() {
        let term = |keys: &[&str]| NodeTerm {
            requirements: keys
                .iter()
                .map(|key| NodeRequirement { key: (*key).to_owned(), operator: NodeOperator::Exists })
                .collect(),
        };
        let set = |terms: &[&[&str]]| terms.iter().map(|keys| term(keys)).collect::<BTreeSet<NodeTerm>>();
        assert_eq!(both(set(&[]), &set(&[&["a"]])), set(&[&["a"]]));
        assert_eq!(both(set(&[&["a"]]), &set(&[])), set(&[&["a"]]));
        assert_eq!(
            both(set(&[&["a"], &["b"]]), &set(&[&["c"], &["d"]])),
            set(&[&["a", "c"], &["a", "d"], &["b", "c"], &["b", "d"],])
        );
        // What matches no node goes on matching none.
        assert_eq!(both(set(&[&[]]), &set(&[&["a"]])), set(&[&[]]));
    }

    #[test]
    fn what_only_asks_does_not_keep_a_pod_from_running() {
        let found = of(json!({
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }));
        assert_eq!(found, Ok(Constraints::default()));
    }
}
