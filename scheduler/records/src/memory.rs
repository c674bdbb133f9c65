//! The engine's memory, which is saved as a whole.

use aliquot_scheduler_core::{DumpedKeeping, DumpedMixCounter, DumpedTurnover, DumpedUsage, Request};
use aliquot_scheduler_engine::{BoundRecord, Memory};
use serde::{Deserialize, Serialize};

use super::request::RequestForm;
use super::words::{ActionForm, OwnerForm, ResourceForm};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct MemoryForm {
    models: Vec<String>,
    capacity: UsageForm,
    usage: Vec<QueueUsageForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arrivals: Option<MixCounterForm>,
    groups: Vec<GroupForm>,
    holds: Vec<HoldForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bounds: Vec<BoundForm>,
    searches: Vec<SearchForm>,
    #[serde(skip_serializing_if = "TurnoverForm::is_nothing")]
    turnover: TurnoverForm,
}

/// How much of the running work has ended lately.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct TurnoverForm {
    ended: u64,
    eighths: u8,
}

impl TurnoverForm {
    fn is_nothing(&self) -> bool {
        (self.ended, self.eighths) == (0, 0)
    }
}

impl From<&Memory> for MemoryForm {
    fn from(memory: &Memory) -> Self {
        let Memory { models, capacity, usage, arrivals, groups, holds, bounds, searches, turnover } = memory;
        let DumpedTurnover { ended, eighths } = *turnover;
        let queue =
            |(queue, usage): &(String, _)| QueueUsageForm { queue: queue.clone(), usage: UsageForm::from(usage) };
        let group = |(namespace, name, added_ms, stale_since_ms): &(String, String, u64, Option<u64>)| GroupForm {
            namespace: namespace.clone(),
            name: name.clone(),
            added_ms: *added_ms,
            stale_since_ms: *stale_since_ms,
        };
        Self {
            models: models.clone(),
            capacity: capacity.into(),
            usage: usage.iter().map(queue).collect(),
            arrivals: arrivals.as_ref().map(MixCounterForm::from),
            groups: groups.iter().map(group).collect(),
            holds: holds
                .iter()
                .map(|(owner, since_ms, nodes)| HoldForm {
                    owner: owner.into(),
                    since_ms: *since_ms,
                    nodes: nodes.iter().map(ToString::to_string).collect(),
                })
                .collect(),
            bounds: bounds.iter().map(BoundForm::from).collect(),
            searches: searches
                .iter()
                .map(|(action, owner, node, times)| SearchForm {
                    action: (*action).into(),
                    owner: owner.into(),
                    node: node.as_ref().map(ToString::to_string),
                    times: *times,
                })
                .collect(),
            turnover: TurnoverForm { ended, eighths },
        }
    }
}

impl TryFrom<MemoryForm> for Memory {
    type Error = String;

    fn try_from(form: MemoryForm) -> Result<Self, String> {
        let MemoryForm { models, capacity, usage, arrivals, groups, holds, bounds, searches, turnover } = form;
        let usage = usage.into_iter().map(|QueueUsageForm { queue, usage }| Ok((queue, usage.try_into()?)));
        let groups = groups
            .into_iter()
            .map(|GroupForm { namespace, name, added_ms, stale_since_ms }| (namespace, name, added_ms, stale_since_ms));
        let holds = holds.into_iter().map(|HoldForm { owner, since_ms, nodes }| {
            (owner.into(), since_ms, nodes.into_iter().map(Into::into).collect())
        });
        let searches = searches.into_iter().map(|SearchForm { action, owner, node, times }| {
            (action.into(), owner.into(), node.map(Into::into), times)
        });
        Ok(Self {
            models,
            capacity: capacity.try_into()?,
            usage: usage.collect::<Result<_, String>>()?,
            arrivals: arrivals.map(Into::into),
            groups: groups.collect(),
            holds: holds.collect(),
            bounds: bounds.into_iter().map(Into::into).collect(),
            searches: searches.collect(),
            turnover: DumpedTurnover { ended: turnover.ended, eighths: turnover.eighths },
        })
    }
}

#[derive(Serialize, Deserialize)]
struct QueueUsageForm {
    queue: String,
    usage: UsageForm,
}

#[derive(Serialize, Deserialize)]
struct GroupForm {
    namespace: String,
    name: String,
    #[serde(default)]
    added_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stale_since_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct HoldForm {
    owner: OwnerForm,
    since_ms: u64,
    #[serde(default)]
    nodes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct BoundForm {
    owner: OwnerForm,
    since_ms: u64,
    #[serde(default)]
    times: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keeping: Option<KeepingForm>,
}

#[derive(Serialize, Deserialize)]
struct KeepingForm {
    queues: Vec<String>,
    excess_per_mille: u64,
    since_ms: u64,
    #[serde(default)]
    is_entitled: bool,
}

impl From<&BoundRecord> for BoundForm {
    fn from(BoundRecord { owner, since_ms, times, keeping }: &BoundRecord) -> Self {
        let form = |DumpedKeeping { queues, excess_per_mille, since_ms, is_entitled }: &DumpedKeeping| KeepingForm {
            queues: queues.clone(),
            excess_per_mille: *excess_per_mille,
            since_ms: *since_ms,
            is_entitled: *is_entitled,
        };
        let keeping = keeping.as_ref().map(form);
        Self { owner: owner.into(), since_ms: *since_ms, times: *times, keeping }
    }
}

impl From<BoundForm> for BoundRecord {
    fn from(BoundForm { owner, since_ms, times, keeping }: BoundForm) -> Self {
        let keeping = keeping.map(|KeepingForm { queues, excess_per_mille, since_ms, is_entitled }| DumpedKeeping {
            queues,
            excess_per_mille,
            since_ms,
            is_entitled,
        });
        Self { owner: owner.into(), since_ms, times, keeping }
    }
}

#[derive(Serialize, Deserialize)]
struct SearchForm {
    action: ActionForm,
    owner: OwnerForm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(default)]
    times: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct UsageForm {
    until_ms: u64,
    integrals: Vec<IntegralForm>,
}

#[derive(Serialize, Deserialize)]
struct IntegralForm {
    resource: ResourceForm,
    /// Written as decimal digits: JSON readers differ in how they read such large numbers.
    integral: String,
}

impl From<&DumpedUsage> for UsageForm {
    fn from(DumpedUsage { until_ms, integrals }: &DumpedUsage) -> Self {
        let integral = |(resource, integral): &(_, u128)| IntegralForm {
            resource: ResourceForm::from(resource),
            integral: integral.to_string(),
        };
        Self { until_ms: *until_ms, integrals: integrals.iter().map(integral).collect() }
    }
}

impl TryFrom<UsageForm> for DumpedUsage {
    type Error = String;

    fn try_from(UsageForm { until_ms, integrals }: UsageForm) -> Result<Self, String> {
        let integral = |IntegralForm { resource, integral }| match integral.parse() {
            Ok(number) => Ok((resource.into(), number)),
            Err(error) => Err(format!("integral {integral:?}: {error}")),
        };
        let integrals = integrals.into_iter().map(integral).collect::<Result<_, String>>()?;
        Ok(Self { until_ms, integrals })
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct MixCounterForm {
    half_life_ms: u64,
    decayed_ms: u64,
    counts: Vec<CountForm>,
    news: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<Vec<CountForm>>,
}

#[derive(Serialize, Deserialize)]
struct CountForm {
    request: RequestForm,
    count: u64,
}

fn count_forms(counts: &[(Request, u64)]) -> Vec<CountForm> {
    counts.iter().map(|(request, count)| CountForm { request: request.into(), count: *count }).collect()
}

fn counts(forms: Vec<CountForm>) -> Vec<(Request, u64)> {
    forms.into_iter().map(|CountForm { request, count }| (request.into(), count)).collect()
}

impl From<&DumpedMixCounter> for MixCounterForm {
    fn from(counter: &DumpedMixCounter) -> Self {
        let DumpedMixCounter { half_life_ms, decayed_ms, counts, news, given } = counter;
        Self {
            half_life_ms: *half_life_ms,
            decayed_ms: *decayed_ms,
            counts: count_forms(counts),
            news: *news,
            given: given.as_deref().map(count_forms),
        }
    }
}

impl From<MixCounterForm> for DumpedMixCounter {
    fn from(form: MixCounterForm) -> Self {
        let MixCounterForm { half_life_ms, decayed_ms, counts: counted, news, given } = form;
        Self { half_life_ms, decayed_ms, counts: counts(counted), news, given: given.map(counts) }
    }
}
