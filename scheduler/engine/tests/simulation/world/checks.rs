//! The checks of the world: what must hold at any moment, and at the end.

use std::collections::BTreeMap;

use aliquot_scheduler_engine::{ClaimUid, Generation, Phase, Whereabouts};

use super::{GIB, REST_MS, World};

impl World {
    /// Checks the nodes: no device is given twice, and every claim runs in one place.
    pub(super) fn check_nodes(&self) -> Result<(), String> {
        let mut places: BTreeMap<&ClaimUid, Vec<(String, Generation)>> = BTreeMap::new();
        for node in &self.nodes {
            let mut held: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
            for ((claim, generation), container) in &node.containers {
                places.entry(claim).or_default().push((node.spec.name.clone(), *generation));
                for part in &container.amounts.devices {
                    let held = held.entry(&part.uuid).or_default();
                    *held = (held.0 + part.core.get(), held.1 + part.memory.get());
                }
            }
            if let Some((device, held)) = held.into_iter().find(|(_, held)| held.0 > 1000 || held.1 > 80 * GIB) {
                return Err(format!("{} gives {device} twice: {held:?}, {:?}", node.spec.name, node.containers));
            }
        }
        match places.into_iter().find(|(_, places)| places.len() > 1) {
            Some((claim, places)) => Err(format!("{claim} is in several places: {places:?}")),
            None => Ok(()),
        }
    }

    /// Checks that no command is sent any more, that exactly the wanted claims run, and that no claim waits for room
    /// that is free.
    pub(super) fn is_at_rest(&self) -> Result<(), String> {
        if self.last_step_ms > REST_MS {
            return Err(format!("at {} ms something was still done", self.last_step_ms));
        }
        let view = self.view.as_ref().ok_or("readers see nothing")?;
        let mut runs = BTreeMap::new();
        for node in &self.nodes {
            for ((claim, generation), container) in &node.containers {
                runs.insert((claim.clone(), node.name(), *generation), container.amounts.clone());
            }
        }
        let mut known = BTreeMap::new();
        for (uid, claim) in view.claims() {
            if !self.wanted.contains_key(uid) {
                return Err(format!("nobody wants {uid}, which is {claim:?}"));
            }
            match claim.whereabouts {
                Whereabouts::There { node, instance, phase: Phase::Running, amounts } => {
                    known.insert((uid.clone(), node, instance), amounts);
                }
                Whereabouts::Waiting => {
                    let group = view.claim_id(uid).and_then(|id| view.cluster().group_of(id));
                    if !view.plan().pending.iter().any(|pending| Some(pending.group) == group) {
                        return Err(format!("{uid} waits without a reason"));
                    }
                }
                other => return Err(format!("{uid} does not come to rest: {other:?}")),
            }
        }
        if runs != known {
            return Err(format!("{runs:?} runs, and {known:?} is taken to run"));
        }
        if let Some(down) = view.nodes().find(|node| !node.is_up) {
            return Err(format!("{down:?} is not up again"));
        }
        let (mut scheduler, mut cluster) = (view.scheduler().fork(), view.cluster().clone());
        match scheduler.cycle(&mut cluster).steps.as_slice() {
            [] => Ok(()),
            steps => Err(format!("another cycle would do {steps:?}")),
        }
    }
}
