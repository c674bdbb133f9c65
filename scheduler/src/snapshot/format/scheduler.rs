//! The policy and the settings of the scheduler.

use aliquot_scheduler_core::Settings;
use serde::{Deserialize, Serialize};

use crate::policy::PolicyName;
use crate::snapshot::format::{RequestEntry, is_default};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct SchedulerEntry {
    pub(in crate::snapshot) policy: PolicyName,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) seed: u64,
    pub(in crate::snapshot) usage_half_life_ms: u64,
    pub(in crate::snapshot) usage_weight_per_mille: u64,
    pub(in crate::snapshot) disruption_per_mille: u64,
    pub(in crate::snapshot) search_budget: u32,
    pub(in crate::snapshot) search_budget_per_cycle: u32,
    pub(in crate::snapshot) moves_per_cycle: u32,
    /// `null` means that no nodes are ever kept.
    pub(in crate::snapshot) hold_after_ms: Option<u64>,
    pub(in crate::snapshot) held_nodes_per_mille: u32,
    /// The mix of claims that is expected. The default is the requests of the claims in the file.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) mix: Option<Vec<MixEntry>>,
}

impl Default for SchedulerEntry {
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl SchedulerEntry {
    /// These settings, with the default policy.
    pub(in crate::snapshot) fn of(settings: &Settings) -> Self {
        let Settings {
            usage_weight,
            disruption_per_mille,
            search_budget,
            search_budget_per_cycle,
            moves_per_cycle,
            hold_after_ms,
            held_nodes_per_mille,
            // A snapshot's mix is given, or is that of its claims.
            counts_mix: _,
        } = *settings;
        Self {
            policy: PolicyName::default(),
            seed: 0,
            usage_half_life_ms: 7 * 24 * 3_600_000,
            usage_weight_per_mille: usage_weight,
            disruption_per_mille,
            search_budget,
            search_budget_per_cycle,
            moves_per_cycle,
            hold_after_ms,
            held_nodes_per_mille,
            mix: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct MixEntry {
    pub(in crate::snapshot) count: u64,
    pub(in crate::snapshot) request: RequestEntry,
}
