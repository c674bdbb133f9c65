//! The snapshot of a live scheduler's cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{Dump, Settings};
use aliquot_scheduler_engine::View;
use anyhow::Result;

use super::File;
use super::format::SchedulerEntry;
use crate::policy::PolicyName;

impl File {
    /// The snapshot of what a live scheduler knows. It decides by this policy and these settings.
    ///
    /// On Kubernetes a claim is named by its pod with the namespace; here the namespace is a key of its own. If two have the
    /// same name then, one gets a number.
    ///
    /// # Errors
    /// None in practice: all names are made such that a snapshot can have them.
    pub fn of_view(view: &View, policy: PolicyName, settings: &Settings) -> Result<Self> {
        let mut dump = view.scheduler().dump(view.cluster());
        give_names(&mut dump);
        let usage_half_life_ms = dump.usage_half_life_ms;
        Self::of(SchedulerEntry { policy, usage_half_life_ms, ..SchedulerEntry::of(settings) }, &dump)
    }
}

/// Gives all claims and pod groups names that a snapshot can have: with no slash, and no two the same in a namespace.
fn give_names(dump: &mut Dump) {
    let mut taken = BTreeSet::new();
    let mut groups: BTreeMap<(String, String), String> = BTreeMap::new();
    for group in &mut dump.groups {
        let spec = &mut group.spec;
        let name = free_name(&spec.namespace, &spec.name, &mut taken);
        let before = std::mem::replace(&mut spec.name, name.clone());
        groups.insert((spec.namespace.clone(), before), name);
    }
    taken.clear();
    for dumped in &mut dump.claims {
        let claim = Arc::make_mut(&mut dumped.claim);
        claim.name = free_name(&claim.namespace, &claim.name, &mut taken);
        if let Some(group) = &mut claim.pod_group
            && let Some(name) = groups.get(&(claim.namespace.clone(), group.clone()))
        {
            group.clone_from(name);
        }
    }
}

/// The name without its namespace and without slashes. If it is taken, it gets the first number with which it is not.
fn free_name(namespace: &str, name: &str, taken: &mut BTreeSet<(String, String)>) -> String {
    let own = name.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name);
    let own = if own.is_empty() { "unnamed".to_owned() } else { own.replace('/', ".") };
    let mut free = own.clone();
    let mut number = 1_u32;
    while !taken.insert((namespace.to_owned(), free.clone())) {
        number += 1;
        free = format!("{own}~{number}");
    }
    free
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_core::{Claim, DumpedClaim, DumpedGroup, PodGroup};

    use super::*;

    #[test]
    fn names_have_no_slash_and_differ() {
        let claim = |namespace: &str, name: &str, group: Option<&str>| DumpedClaim {
            claim: Arc::new(Claim {
                namespace: namespace.into(),
                name: name.into(),
                pod_group: group.map(str::to_owned),
                ..Claim::default()
            }),
            ..DumpedClaim::default()
        };
        let group = |name: &str| DumpedGroup {
            spec: PodGroup { namespace: "team".into(), name: name.into(), ..PodGroup::default() },
            ..DumpedGroup::default()
        };
        let mut dump = Dump {
            groups: vec![group("job/a"), group("job.a")],
            claims: vec![
                claim("team", "team/a", Some("job/a")),
                claim("team", "a", Some("job.a")),
                claim("other", "other/a", None),
                claim("team", "part x/y", None),
                claim("team", "", None),
            ],
            ..Dump::default()
        };
        give_names(&mut dump);
        let groups: Vec<&str> = dump.groups.iter().map(|group| group.spec.name.as_str()).collect();
        assert_eq!(groups, ["job.a", "job.a~2"]);
        let claims: Vec<(&str, Option<&str>)> =
            dump.claims.iter().map(|of| (of.claim.name.as_str(), of.claim.pod_group.as_deref())).collect();
        let expected =
            [("a", Some("job.a")), ("a~2", Some("job.a~2")), ("a", None), ("part x.y", None), ("unnamed", None)];
        assert_eq!(claims, expected);
    }
}
