//! What was told before [`Observation::Synced`]: after a start the engine decides nothing until it knows all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{Claim, DisruptionBudget, NamespaceSpec, PodGroup, QueueSpec};

use super::Decisions;
use crate::names::{ClaimUid, NodeName};
use crate::observation::{NodeReport, Observation};
use crate::store::Saved;

/// What was told so far.
#[derive(Clone, Debug)]
pub(super) struct Collected {
    pub(super) decisions: Decisions,
    pub(super) saved: Saved,
    /// The last observation about each subject, with its place in the order in which they came.
    configuration: BTreeMap<Subject, (usize, Observation)>,
    told: usize,
    /// Claims, each with its place in that order.
    pub(super) claims: BTreeMap<ClaimUid, (usize, Arc<Claim>)>,
    /// The newest report of each node.
    pub(super) reports: BTreeMap<NodeName, NodeReport>,
    /// Nodes that are gone for good. Another node of the same name may have reported since.
    pub(super) gone: BTreeSet<NodeName>,
}

impl Collected {
    pub(super) fn new(decisions: Decisions, saved: Saved) -> Self {
        Self {
            decisions,
            saved,
            configuration: BTreeMap::new(),
            told: 0,
            claims: BTreeMap::new(),
            reports: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }

    pub(super) fn take(&mut self, observation: Observation) {
        match observation {
            Observation::Claim(uid, claim) => {
                let (number, claim) = (self.claims.len(), Arc::new(*claim));
                self.claims.entry(uid).and_modify(|(_, known)| known.clone_from(&claim)).or_insert((number, claim));
            }
            Observation::ClaimResized(uid, request) => {
                if let Some((_, claim)) = self.claims.get_mut(&uid) {
                    Arc::make_mut(claim).request = *request;
                }
            }
            Observation::ClaimPeers(uid, peers) => {
                if let Some((_, claim)) = self.claims.get_mut(&uid) {
                    Arc::make_mut(claim).request.peers = peers;
                }
            }
            Observation::ClaimBudget(uid, budget) => {
                if let Some((_, claim)) = self.claims.get_mut(&uid) {
                    Arc::make_mut(claim).disruption_budget = budget;
                }
            }
            Observation::ClaimEnded(uid) => _ = self.claims.remove(&uid),
            Observation::Node(report) => {
                let name = NodeName::from(report.spec.name.as_str());
                let newest = |known: &NodeReport| (known.session, known.sequence);
                if self.reports.get(&name).is_none_or(|known| newest(known) < newest(&report)) {
                    self.reports.insert(name, *report);
                }
            }
            Observation::NodeGone(node) => {
                self.reports.remove(&node);
                self.gone.insert(node);
            }
            Observation::Together(all) => all.into_iter().for_each(|one| self.take(one)),
            // Nodes are asked again, and report their instances again.
            Observation::Synced | Observation::Heartbeat(_) | Observation::NodeLost(_) | Observation::Outcome(_) => {}
            configured => {
                self.told += 1;
                if let Some(subject) = subject_of(&configured) {
                    self.configuration.insert(subject, (self.told, configured));
                }
            }
        }
    }

    /// The configuration, in the order in which it was told.
    pub(super) fn take_configuration(&mut self) -> Vec<Observation> {
        let mut told: Vec<_> = std::mem::take(&mut self.configuration).into_values().collect();
        told.sort_unstable_by_key(|(number, _)| *number);
        told.into_iter().map(|(_, observation)| observation).collect()
    }
}

/// The subject of a configuration. A later observation about the same subject replaces an earlier one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Subject {
    Queue(String),
    Group(String, String),
    Namespace(String),
    Budget(String, String),
    Topology,
}

fn subject_of(observation: &Observation) -> Option<Subject> {
    Some(match observation {
        Observation::Queue(QueueSpec { name, .. }) | Observation::QueueRemoved(name) => Subject::Queue(name.clone()),
        Observation::Group(PodGroup { namespace, name, .. }) | Observation::GroupRemoved(namespace, name) => {
            Subject::Group(namespace.clone(), name.clone())
        }
        Observation::Namespace(NamespaceSpec { name, .. }) | Observation::NamespaceRemoved(name) => {
            Subject::Namespace(name.clone())
        }
        Observation::Budget(DisruptionBudget { namespace, name, .. }) | Observation::BudgetRemoved(namespace, name) => {
            Subject::Budget(namespace.clone(), name.clone())
        }
        Observation::Topology(_) => Subject::Topology,
        _ => return None,
    })
}
