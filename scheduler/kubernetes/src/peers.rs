//! Which pods a pod must be near, must not be near, or is to be spread among, and which of these it only prefers.
//!
//! Selectors are evaluated here: the books know only groups of pods, and which pods are members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use aliquot_scheduler_core::{
    Affinity, AntiAffinity, NodeOperator, NodeRequirement, NodeTerm, PeerGroup, PeerPreference, Peers, Toleration,
    TopologySpread,
};
use k8s_openapi::api::core::v1::{PodAffinityTerm, PodSpec, TopologySpreadConstraint, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::placement::{self, NumberedTaints};

type Labels = BTreeMap<String, String>;

/// Requirements on labels, all of which must hold. `None`, as in Kubernetes, is a selector that matches nothing.
pub(crate) type Requirements = Option<BTreeSet<NodeRequirement>>;

/// The pods that a rule is about: those that all terms match.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Selection {
    terms: BTreeSet<Term>,
    /// Whether pods that are being deleted count, too.
    with_leaving: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Term {
    labels: Requirements,
    namespaces: BTreeSet<String>,
    /// Namespaces with such labels count, too.
    labels_of_namespace: Requirements,
}

/// A pod as selections see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) labels: &'a Labels,
    pub(crate) namespace: &'a str,
    pub(crate) labels_of_namespace: &'a Labels,
    pub(crate) is_leaving: bool,
}

impl Selection {
    fn of_all(terms: BTreeSet<Term>) -> Selection {
        Selection { terms, with_leaving: true }
    }

    pub(crate) fn matches(&self, pod: Seen<'_>) -> bool {
        (self.with_leaving || !pod.is_leaving) && self.terms.iter().all(|term| term.matches(pod))
    }

    /// The name of the group of these pods. Different selections have different names.
    pub(crate) fn group(&self) -> PeerGroup {
        self.to_string().as_str().into()
    }
}

impl Term {
    fn matches(&self, pod: Seen<'_>) -> bool {
        let is_in = self.namespaces.contains(pod.namespace) || hold(&self.labels_of_namespace, pod.labels_of_namespace);
        is_in && hold(&self.labels, pod.labels)
    }
}

fn hold(requirements: &Requirements, labels: &Labels) -> bool {
    let holds = |requirement: &NodeRequirement| requirement.holds(labels.get(&requirement.key).map(String::as_str));
    requirements.as_ref().is_some_and(|all| all.iter().all(holds))
}

impl Display for Selection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self.terms.iter().map(Term::to_string).collect();
        f.write_str(&terms.join(" that are also "))?;
        if self.with_leaving { Ok(()) } else { f.write_str(", except those being deleted") }
    }
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let joined = |all: &BTreeSet<NodeRequirement>| {
            all.iter().map(NodeRequirement::to_string).collect::<Vec<String>>().join(" and ")
        };
        match &self.labels {
            None => f.write_str("no pods")?,
            Some(all) if all.is_empty() => f.write_str("all pods")?,
            Some(all) => write!(f, "pods with {}", joined(all))?,
        }
        let namespaces: Vec<&str> = self.namespaces.iter().map(String::as_str).collect();
        if !namespaces.is_empty() {
            write!(f, " of namespace {}", namespaces.join(", "))?;
        }
        match &self.labels_of_namespace {
            None => Ok(()),
            Some(all) if all.is_empty() => f.write_str(" of any namespace"),
            Some(all) => write!(f, " of namespaces with {}", joined(all)),
        }
    }
}

/// A pod's rules about other pods.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct PeerRules {
    affinity: Option<(Selection, BTreeSet<String>)>,
    anti_affinity: BTreeSet<(Selection, String)>,
    spread: Vec<(Selection, Evenness)>,
    /// By pods and topology key, the weight with which the pod prefers to be near them. Below 0: not to be near them.
    preferences: BTreeMap<(Selection, String), i32>,
    preferred_spread: Vec<(Selection, Evenness)>,
}

/// How even a spread is to be, and over which nodes.
#[derive(Clone, PartialEq, Debug)]
struct Evenness {
    topology_key: String,
    max_skew: u32,
    min_domains: u32,
    labels: Labels,
    node_terms: BTreeSet<NodeTerm>,
    tolerations: Option<BTreeSet<Toleration>>,
}

impl PeerRules {
    /// # Errors
    /// Which part of the rules is not supported.
    pub(crate) fn of(spec: &PodSpec, namespace: &str, labels: &Labels) -> Result<PeerRules, String> {
        let affinity = spec.affinity.as_ref();
        let near = affinity.and_then(|of| of.pod_affinity.as_ref());
        let preferred = near.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_deref());
        let mut preferences = BTreeMap::new();
        prefer(&mut preferences, preferred.unwrap_or_default(), 1, namespace)?;
        let near = near.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
        let near: Vec<(Term, String)> =
            near.into_iter().flatten().map(|term| of_term(term, namespace)).collect::<Result<_, String>>()?;
        let apart = affinity.and_then(|of| of.pod_anti_affinity.as_ref());
        let preferred = apart.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_deref());
        prefer(&mut preferences, preferred.unwrap_or_default(), -1, namespace)?;
        let apart = apart.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
        let apart = apart.into_iter().flatten().map(|term| avoided(term, namespace));
        let spread = |when_unsatisfiable: &str| {
            let all = spec.topology_spread_constraints.iter().flatten();
            let rules = all.filter(|of| of.when_unsatisfiable == when_unsatisfiable);
            rules.map(|of| of_spread(of, spec, namespace, labels)).collect::<Result<Vec<_>, String>>()
        };
        let (terms, topology_keys): (BTreeSet<Term>, BTreeSet<String>) = near.into_iter().unzip();
        Ok(PeerRules {
            affinity: (!terms.is_empty()).then(|| (Selection::of_all(terms), topology_keys)),
            anti_affinity: apart.collect::<Result<_, String>>()?,
            spread: spread("DoNotSchedule")?,
            preferences,
            preferred_spread: spread("ScheduleAnyway")?,
        })
    }

    /// The rules that last when the pod is bound, as far as they are supported. Rules that only decide about the pod's
    /// own place are not read.
    pub(crate) fn lasting(spec: &PodSpec, namespace: &str) -> PeerRules {
        let affinity = spec.affinity.as_ref();
        let near = affinity.and_then(|of| of.pod_affinity.as_ref());
        let near = near.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_deref());
        let apart = affinity.and_then(|of| of.pod_anti_affinity.as_ref());
        let further = apart.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_deref());
        let mut preferences = BTreeMap::new();
        for (terms, sign) in [(near, 1), (further, -1)] {
            for term in terms.unwrap_or_default() {
                _ = prefer(&mut preferences, std::slice::from_ref(term), sign, namespace);
            }
        }
        let apart = apart.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_deref());
        let apart = apart.unwrap_or_default().iter().filter_map(|term| avoided(term, namespace).ok());
        PeerRules { anti_affinity: apart.collect(), preferences, ..PeerRules::default() }
    }

    /// The rules that last when the pod is bound.
    pub(crate) fn when_bound(&self) -> PeerRules {
        let (anti_affinity, preferences) = (self.anti_affinity.clone(), self.preferences.clone());
        PeerRules { anti_affinity, preferences, ..PeerRules::default() }
    }

    /// All pods that the rules are about.
    pub(crate) fn selections(&self) -> BTreeSet<&Selection> {
        let affinity = self.affinity.iter().map(|(selection, _)| selection);
        let anti_affinity = self.anti_affinity.iter().map(|(selection, _)| selection);
        let spread = self.spread.iter().chain(&self.preferred_spread).map(|(selection, _)| selection);
        let preferences = self.preferences.keys().map(|(selection, _)| selection);
        affinity.chain(anti_affinity).chain(spread).chain(preferences).collect()
    }

    /// The rules in the words of the books, for a pod that is a member of these groups.
    pub(crate) fn peers(&self, member_of: BTreeSet<PeerGroup>) -> Peers {
        let affinity = self.affinity.as_ref().map(|(selection, topology_keys)| Affinity {
            group: selection.group(),
            topology_keys: topology_keys.clone(),
        });
        let anti_affinity = self.anti_affinity.iter().map(|(selection, topology_key)| AntiAffinity {
            group: selection.group(),
            topology_key: topology_key.clone(),
        });
        let spread = |rules: &[(Selection, Evenness)]| rules.iter().map(|(of, evenness)| evenness.rule(of)).collect();
        let preferences =
            self.preferences.iter().filter(|(_, weight)| **weight != 0).map(|((of, topology_key), weight)| {
                PeerPreference { group: of.group(), topology_key: topology_key.clone(), weight: *weight }
            });
        Peers {
            member_of,
            affinity,
            anti_affinity: anti_affinity.collect(),
            spread: spread(&self.spread),
            preferences: preferences.collect(),
            preferred_spread: spread(&self.preferred_spread),
        }
    }
}

impl Evenness {
    /// The rule in the words of the books, for the pods of a selection.
    fn rule(&self, of: &Selection) -> TopologySpread {
        let Evenness { topology_key, max_skew, min_domains, labels, node_terms, tolerations } = self.clone();
        TopologySpread { group: of.group(), topology_key, max_skew, min_domains, labels, node_terms, tolerations }
    }
}

/// Adds preferred terms. Their weights are multiplied by `sign`.
fn prefer(
    preferences: &mut BTreeMap<(Selection, String), i32>,
    terms: &[WeightedPodAffinityTerm],
    sign: i32,
    namespace: &str,
) -> Result<(), String> {
    for WeightedPodAffinityTerm { pod_affinity_term, weight } in terms {
        let (term, topology_key) = of_term(pod_affinity_term, namespace)?;
        let sum = preferences.entry((Selection::of_all(BTreeSet::from([term])), topology_key)).or_default();
        *sum = sum.saturating_add(sign * (*weight).clamp(0, 100));
    }
    Ok(())
}

/// The pods of an anti-affinity, and its topology key.
fn avoided(term: &PodAffinityTerm, namespace: &str) -> Result<(Selection, String), String> {
    let (term, topology_key) = of_term(term, namespace)?;
    Ok((Selection::of_all(BTreeSet::from([term])), topology_key))
}

/// The API server has merged `matchLabelKeys` and `mismatchLabelKeys` into the selector of an affinity already.
fn of_term(of: &PodAffinityTerm, own_namespace: &str) -> Result<(Term, String), String> {
    let mut namespaces: BTreeSet<String> = of.namespaces.iter().flatten().cloned().collect();
    if namespaces.is_empty() && of.namespace_selector.is_none() {
        namespaces.insert(own_namespace.to_owned());
    }
    let term = Term {
        labels: requirements(of.label_selector.as_ref())?,
        namespaces,
        labels_of_namespace: requirements(of.namespace_selector.as_ref())?,
    };
    Ok((term, of.topology_key.clone()))
}

fn of_spread(
    of: &TopologySpreadConstraint,
    spec: &PodSpec,
    namespace: &str,
    own_labels: &Labels,
) -> Result<(Selection, Evenness), String> {
    let mut labels = requirements(of.label_selector.as_ref())?;
    if let Some(labels) = &mut labels {
        // An older API server leaves these to the scheduler.
        let keys = of.match_label_keys.iter().flatten().filter_map(|key| Some((key, own_labels.get(key)?)));
        labels.extend(keys.map(|(key, value)| one_of(key, [value.clone()])));
        if labels.is_empty() {
            // Unlike elsewhere, a selector that matches everything counts no pod here, as in kube-scheduler.
            return Ok((selected(None, namespace), evenness(of, spec)?));
        }
    }
    Ok((selected(labels, namespace), evenness(of, spec)?))
}

/// Pods of a namespace that are to be spread.
fn selected(labels: Requirements, namespace: &str) -> Selection {
    let namespaces = BTreeSet::from([namespace.to_owned()]);
    let term = Term { labels, namespaces, labels_of_namespace: None };
    Selection { terms: BTreeSet::from([term]), with_leaving: false }
}

fn evenness(of: &TopologySpreadConstraint, spec: &PodSpec) -> Result<Evenness, String> {
    let is = |policy: &Option<String>, default: bool| policy.as_deref().map_or(default, |policy| policy == "Honor");
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let (labels, node_terms) = match is(&of.node_affinity_policy, true) {
        true => placement::selected_nodes(spec)?,
        false => Default::default(),
    };
    let minds_taints = is(&of.node_taints_policy, false);
    if minds_taints && placement::compares_taints(spec) {
        return Err("nodeTaintsPolicy Honor together with tolerations of operator Gt or Lt is not supported".into());
    }
    let tolerations = minds_taints.then(|| placement::tolerations(spec, &NumberedTaints::default())).transpose()?;
    Ok(Evenness {
        topology_key: of.topology_key.clone(),
        max_skew: number(of.max_skew),
        min_domains: of.min_domains.map_or(1, number),
        labels,
        node_terms,
        tolerations,
    })
}

/// What a selector asks of labels; `None`: there is no selector.
///
/// # Errors
/// What of it is not supported.
pub(crate) fn requirements(selector: Option<&LabelSelector>) -> Result<Requirements, String> {
    let Some(selector) = selector else { return Ok(None) };
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| Ok(one_of(key, [value.clone()])));
    let expressions = selector.match_expressions.iter().flatten().map(requirement);
    labels.chain(expressions).collect::<Result<_, String>>().map(Some)
}

/// Whether a selector matches labels. One that cannot be read is taken to match.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    requirements(selector).map_or(true, |requirements| hold(&requirements, labels))
}

fn one_of(key: &str, values: impl IntoIterator<Item = String>) -> NodeRequirement {
    NodeRequirement { key: key.to_owned(), operator: NodeOperator::In(values.into_iter().collect()) }
}

fn requirement(of: &LabelSelectorRequirement) -> Result<NodeRequirement, String> {
    let values = || of.values.iter().flatten().cloned().collect();
    let operator = match of.operator.as_str() {
        "In" => NodeOperator::In(values()),
        "NotIn" => NodeOperator::NotIn(values()),
        "Exists" => NodeOperator::Exists,
        "DoesNotExist" => NodeOperator::DoesNotExist,
        other => return Err(format!("a label selector has the operator {other:?}, which is not supported")),
    };
    Ok(NodeRequirement { key: of.key.clone(), operator })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn labels(labels: &[(&str, &str)]) -> Labels {
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn rules(spec: Value, own: &[(&str, &str)]) -> PeerRules {
        let mut spec = spec;
        spec["containers"] = json!([]);
        PeerRules::of(&serde_json::from_value(spec).unwrap(), "default", &labels(own)).unwrap()
    }

    fn anti_affinity(term: Value) -> Selection {
        let terms = json!([term]);
        let rules = rules(
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}),
            &[],
        );
        rules.anti_affinity.first().unwrap().0.clone()
    }

    fn spread(constraint: Value, own: &[(&str, &str)]) -> (Selection, Evenness) {
        let mut constraint = constraint;
        constraint["maxSkew"] = 2.into();
        constraint["whenUnsatisfiable"] = "DoNotSchedule".into();
        let spec = json!({
            "topologySpreadConstraints": [constraint],
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
        });
        rules(spec, own).spread.remove(0)
    }

    #[test]
    fn selectors_match_as_kubernetes_says() {
        let web = labels(&[("app", "web"), ("tier", "1")]);
        let matches = |term: Value, namespace: &str, of_namespace: &[(&str, &str)]| {
            let labels_of_namespace = &labels(of_namespace);
            let pod = Seen { labels: &web, namespace, labels_of_namespace, is_leaving: true };
            anti_affinity(term).matches(pod)
        };
        let with = |selector: Value| json!({"topologyKey": "zone", "labelSelector": selector});
        let expression = |operator: &str, values: &[&str]| {
            with(json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}))
        };
        // Labels.
        assert!(matches(with(json!({"matchLabels": {"app": "web"}})), "default", &[]));
        assert!(!matches(with(json!({"matchLabels": {"app": "web", "tier": "2"}})), "default", &[]));
        assert!(matches(with(json!({})), "default", &[]), "an empty selector matches all pods");
        assert!(!matches(json!({"topologyKey": "zone"}), "default", &[]), "no selector matches none");
        assert!(matches(expression("In", &["db", "web"]), "default", &[]));
        assert!(!matches(expression("NotIn", &["db", "web"]), "default", &[]));
        assert!(matches(expression("Exists", &[]), "default", &[]));
        assert!(!matches(expression("DoesNotExist", &[]), "default", &[]));
        // Namespaces: its own, those that are named, and those with such labels.
        let all = |more: Value| {
            let mut term = with(json!({}));
            json_patch::merge(&mut term, &more);
            term
        };
        assert!(!matches(all(json!({})), "other", &[]));
        assert!(matches(all(json!({"namespaces": ["other"]})), "other", &[]));
        assert!(!matches(all(json!({"namespaces": ["other"]})), "default", &[]));
        assert!(matches(all(json!({"namespaceSelector": {}})), "other", &[]), "any namespace");
        let team = json!({"namespaces": ["x"], "namespaceSelector": {"matchLabels": {"team": "a"}}});
        assert!(matches(all(team.clone()), "other", &[("team", "a")]));
        assert!(matches(all(team.clone()), "x", &[]));
        assert!(!matches(all(team), "default", &[("team", "b")]));
    }

    #[test]
    fn an_affinity_is_to_pods_that_all_its_terms_match() {
        let term =
            |key: &str, label: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {(label): "x"}}});
        let terms = json!([term("zone", "a"), term("host", "b")]);
        let rules =
            rules(json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}), &[]);
        let (selection, keys) = rules.affinity.clone().unwrap();
        assert_eq!(keys.iter().map(String::as_str).collect::<Vec<_>>(), ["host", "zone"]);
        let matches = |of: &[(&str, &str)]| {
            let none = Labels::new();
            let labels = labels(of);
            selection.matches(Seen {
                labels: &labels,
                namespace: "default",
                labels_of_namespace: &none,
                is_leaving: false,
            })
        };
        assert!(matches(&[("a", "x"), ("b", "x")]) && !matches(&[("a", "x")]) && !matches(&[("b", "x")]));
        assert_eq!(rules.when_bound(), PeerRules::default());
    }

    #[test]
    fn a_spread_counts_as_kubernetes_says() {
        let app = json!({"matchLabels": {"app": "web"}});
        let (selection, of) = spread(json!({"topologyKey": "zone", "labelSelector": app}), &[]);
        assert_eq!((of.topology_key.as_str(), of.max_skew, of.min_domains), ("zone", 2, 1));
        // By default a node counts that the pod may be on by its affinity, whatever its taints.
        assert_eq!((of.labels, of.tolerations), (labels(&[("gpu", "h100")]), None));
        let (web, none) = (labels(&[("app", "web")]), Labels::new());
        let seen = |namespace, is_leaving| Seen { labels: &web, namespace, labels_of_namespace: &none, is_leaving };
        assert!(selection.matches(seen("default", false)));
        assert!(!selection.matches(seen("default", true)) && !selection.matches(seen("other", false)));
        let policies = json!({
            "topologyKey": "zone", "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor", "minDomains": 3,
        });
        let (_, of) = spread(policies, &[]);
        assert_eq!((of.labels.len(), of.min_domains), (0, 3));
        assert_eq!(of.tolerations.map(|tolerations| tolerations.len()), Some(1));
        // What a toleration of numbers tolerates depends on the taints that there are.
        let spec = json!({
            "containers": [],
            "tolerations": [{"key": "sla", "operator": "Gt", "value": "1"}],
            "topologySpreadConstraints": [{
                "topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
            }],
        });
        let why = PeerRules::of(&serde_json::from_value(spec).unwrap(), "default", &none).unwrap_err();
        assert!(why.contains("nodeTaintsPolicy"), "{why}");
        // Only pods of the same revision.
        let keys = json!({"topologyKey": "zone", "labelSelector": app, "matchLabelKeys": ["hash", "none"]});
        let (selection, _) = spread(keys, &[("hash", "1")]);
        assert_eq!(
            selection.to_string(),
            "pods with app in (web) and hash in (1) of namespace default, except those being deleted"
        );
        let (selection, _) = spread(json!({"topologyKey": "zone", "labelSelector": {}}), &[]);
        assert!(!selection.matches(seen("default", false)), "an empty selector counts nobody");
    }

    #[test]
    fn what_is_preferred_of_pods_keeps_them_from_nowhere() {
        let term = |weight: i32, app: &str, key: &str| {
            let selector = json!({"matchLabels": {"app": app}});
            json!({"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": selector}})
        };
        let preferred = |terms: Value| json!({"preferredDuringSchedulingIgnoredDuringExecution": terms});
        let rules = rules(
            json!({
                "affinity": {
                    "podAffinity": preferred(json!([term(30, "db", "zone"), term(5, "db", "host"), term(7, "x", "zone")])),
                    "podAntiAffinity": preferred(json!([term(10, "db", "zone"), term(7, "x", "zone")])),
                },
                "topologySpreadConstraints": [{
                    "maxSkew": 3, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": "web"}},
                }],
            }),
            &[],
        );
        let peers = rules.peers(BTreeSet::new());
        assert!(!peers.has_rules());
        // Terms about the same pods and domains are one, and none if they come to nothing.
        let found = peers.preferences.iter();
        let found = found.map(|of| (of.group.0.as_ref(), of.topology_key.as_str(), of.weight)).collect::<Vec<_>>();
        let db = "pods with app in (db) of namespace default";
        assert_eq!(found, [(db, "host", 5), (db, "zone", 20)]);
        let spread: Vec<(&str, u32)> =
            peers.preferred_spread.iter().map(|of| (of.topology_key.as_str(), of.max_skew)).collect();
        assert_eq!(spread, [("zone", 3)]);
        // The preferences of a bound pod still count for others.
        assert_eq!(rules.when_bound().peers(BTreeSet::new()).preferences, peers.preferences);
        assert_eq!(rules.selections().len(), 3);
    }

    #[test]
    fn different_selections_have_different_names() {
        let selector = |selector: Value| json!({"topologyKey": "zone", "labelSelector": selector});
        let all = [
            anti_affinity(json!({"topologyKey": "zone"})),
            anti_affinity(selector(json!({}))),
            anti_affinity(selector(json!({"matchLabels": {"a": "b"}}))),
            anti_affinity(json!({"topologyKey": "zone", "namespaceSelector": {}})),
            anti_affinity(json!({"topologyKey": "zone", "namespaces": ["x"], "namespaceSelector": {}})),
            spread(json!({"topologyKey": "zone"}), &[]).0,
        ];
        let names: BTreeSet<String> = all.iter().map(Selection::to_string).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
        // Two ways to write the same selector are equal.
        let expression = json!([{"key": "a", "operator": "In", "values": ["b"]}]);
        assert_eq!(anti_affinity(selector(json!({"matchExpressions": expression}))), all[2]);
    }
}
