//! How near each other the pods of Volcano's groups must be: a tier is a level of the topology around the nodes.

use aliquot_scheduler_core::GroupPlacement;
use serde_json::Value;

use super::facts::{items, text};

/// The label whose domains are single nodes. Volcano's tiers are around it.
const HOST: &str = "kubernetes.io/hostname";

/// What a group says of the network between its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// The nearer the better.
    Near,
    /// In one domain of this tier, or of one within it: 1 is the innermost tier.
    WithinTier(u64),
    /// The same for the tier that has this name.
    WithinNamed(String),
}

impl Network {
    /// What a PodGroup of Volcano says of it.
    ///
    /// # Errors
    /// What is not supported.
    pub(super) fn of(spec: &Value) -> Result<Option<Network>, String> {
        let constraint = &spec["networkTopology"];
        for of_parts in items(&spec["subGroupPolicy"]) {
            let needs_some = of_parts["minSubGroups"].as_i64().is_some_and(|least| least > 0);
            if needs_some || matches!(said(&of_parts["networkTopology"]), Some(of) if of != Network::Near) {
                let name = text(&of_parts["name"]).unwrap_or_default();
                return Err(format!(
                    "minSubGroups and a hard networkTopology of subGroupPolicy {name:?} (partitionPolicy of a Job) are not \
                     supported; leave them out, or make a PodGroup for each part"
                ));
            }
        }
        Ok(said(constraint))
    }

    /// Where the pods of such a group may be. `levels`: the topology's labels of nodes, the outermost first.
    ///
    /// # Errors
    /// The topology lacks the tier.
    pub(crate) fn placement(&self, levels: &[String]) -> Result<GroupPlacement, String> {
        let tiers: Vec<&String> = levels.iter().rev().skip_while(|level| *level == HOST).collect();
        let required_level = match self {
            Network::Near => None,
            Network::WithinTier(number) => {
                let index = number.checked_sub(1).and_then(|index| usize::try_from(index).ok());
                let level = index.and_then(|index| tiers.get(index)).ok_or_else(|| {
                    format!(
                        "its networkTopology is hard with highestTierAllowed {number}, and --topology of the scheduler names \
                         {} levels around nodes; name the label of each tier there, the outermost first",
                        tiers.len()
                    )
                })?;
                Some(*level)
            }
            Network::WithinNamed(name) => {
                let level = levels.iter().find(|level| *level == name).ok_or_else(|| {
                    format!(
                        "its networkTopology is hard with highestTierName {name:?}, and --topology of the scheduler does not \
                         name this label; name it there, or use highestTierAllowed"
                    )
                })?;
                Some(level)
            }
        };
        let preferred_level = tiers.first().copied().filter(|level| required_level != Some(*level));
        Ok(GroupPlacement {
            required_level: required_level.cloned(),
            preferred_level: preferred_level.cloned(),
            ..GroupPlacement::default()
        })
    }
}

/// What a `networkTopology` says. Without a mode it is hard. Volcano bounds no tier if a hard one names none.
fn said(constraint: &Value) -> Option<Network> {
    let tier = constraint["highestTierAllowed"].as_u64().map(Network::WithinTier);
    let tier = || tier.or_else(|| text(&constraint["highestTierName"]).map(Network::WithinNamed));
    match constraint["mode"].as_str() {
        _ if !constraint.is_object() => None,
        Some("soft") => Some(Network::Near),
        _ => Some(tier().unwrap_or(Network::Near)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tier_is_a_level_around_the_nodes() {
        let of = |constraint: Value, levels: &[&str]| {
            let levels: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
            let network = Network::of(&json!({"networkTopology": constraint})).unwrap().unwrap();
            network.placement(&levels).map(|of| (of.required_level, of.preferred_level))
        };
        let some = |level: &str| Some(level.to_owned());
        let levels = ["zone", "rack", HOST];
        for (constraint, expected) in [
            (json!({"mode": "soft"}), (None, some("rack"))),
            (json!({"mode": "soft", "highestTierAllowed": 9}), (None, some("rack"))),
            (json!({"mode": "hard", "highestTierAllowed": 1}), (some("rack"), None)),
            (json!({"mode": "hard", "highestTierAllowed": 2}), (some("zone"), some("rack"))),
            (json!({"highestTierAllowed": 2}), (some("zone"), some("rack"))),
            (json!({"mode": "hard", "highestTierName": "zone"}), (some("zone"), some("rack"))),
            (json!({"mode": "hard"}), (None, some("rack"))),
        ] {
            assert_eq!(of(constraint.clone(), &levels), Ok(expected.clone()), "{constraint}");
            assert_eq!(of(constraint, &levels[..2]), Ok(expected));
        }
        assert_eq!(of(json!({"mode": "soft"}), &[HOST]), Ok((None, None)));
        for tier in [0, 3] {
            let error = of(json!({"highestTierAllowed": tier}), &levels).unwrap_err();
            assert!(error.contains(&format!("highestTierAllowed {tier}")) && error.contains("2 levels"), "{error}");
        }
        let error = of(json!({"highestTierName": "row"}), &levels).unwrap_err();
        assert!(error.contains("highestTierName \"row\""), "{error}");
        assert_eq!(Network::of(&json!({})), Ok(None));
    }

    #[test]
    fn parts_of_a_group_that_must_be_near_are_not_passed_over() {
        let parts = |of_part: Value| Network::of(&json!({"subGroupPolicy": [of_part]}));
        for of_part in [
            json!({"name": "p", "minSubGroups": 2}),
            json!({"name": "p", "networkTopology": {"mode": "hard", "highestTierAllowed": 1}}),
            json!({"name": "p", "networkTopology": {"highestTierName": "rack"}}),
        ] {
            assert!(parts(of_part).unwrap_err().contains("subGroupPolicy \"p\""));
        }
        let harmless = json!({"name": "p", "minSubGroups": 0, "subGroupSize": 2, "networkTopology": {"mode": "soft"}});
        assert_eq!(parts(harmless), Ok(None));
    }
}
