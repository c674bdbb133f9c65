//! What keeps devices from a pod that lacks some: taints, what is left of capacities, and devices that are left out for a
//! while.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceTaint;

use super::{DeviceClaims, Mirror};
use crate::dra::Criteria;
use crate::dra::whole::RESULTS_MAX;

/// What was found at one look, by the key of the criteria: pods that wait mostly ask for the same.
#[derive(Debug, Default)]
pub(crate) struct AboutDevices {
    tainted: BTreeMap<String, Option<String>>,
    /// Of other drivers' devices, by the number that is asked for, too.
    pub(super) lacking: BTreeMap<(String, u16), Option<Lacking>>,
}

/// That devices have too little capacity.
#[derive(Clone, Debug)]
pub(super) struct Lacking {
    /// Devices with enough are fewer than the request asks for.
    pub(super) is_too_few: bool,
    pub(super) text: String,
}

impl Mirror {
    /// What keeps devices from a pod, if it lacks some. `seen`: what was found about other pods at the same look.
    pub(crate) fn about_devices(&self, uid: &str, seen: &mut AboutDevices) -> Vec<String> {
        let lacking = self.lacking_capacity(uid, seen);
        let others = self.tainted_for(uid, seen).into_iter().chain(self.shunned_for_pod(uid));
        let known = lacking.into_iter().chain(others).chain(self.too_many_for(uid));
        self.searched_for(uid).into_iter().chain(known).collect()
    }

    /// Names a node with more devices than a claim can get, if a claim asks for all of a node and no node has a number of
    /// devices that it can get.
    fn too_many_for(&self, uid: &str) -> Option<String> {
        let criteria = self.criteria_of(self.pods.get(uid)?);
        let claims = &self.device_claims;
        let selections = criteria.iter().filter_map(|criteria| claims.selections.get(&criteria.key()));
        let mut without_number = selections.filter(|selection| selection.numbers().next().is_none());
        without_number.find_map(|selection| {
            let too_many = |node: &String| Some((node.clone(), selection.too_many_on(&claims.pools, node)?));
            let (node, number) = self.nodes.keys().find_map(too_many)?;
            Some(format!(
                "a request asks for all devices of a node, a claim gets {RESULTS_MAX} at most, and node {node} has {number}"
            ))
        })
    }

    /// Names a device that only a taint keeps from a pod's claims; `None`: there is none.
    pub(in super::super) fn tainted_for(&self, uid: &str, seen: &mut AboutDevices) -> Option<String> {
        let criteria = self.criteria_of(self.pods.get(uid)?);
        criteria.iter().find_map(|criteria| {
            let found = seen.tainted.entry(criteria.key());
            found.or_insert_with(|| self.device_claims.tainted_for(criteria)).clone()
        })
    }
}

impl DeviceClaims {
    fn tainted_for(&self, criteria: &Criteria) -> Option<String> {
        let ((driver, pool), device, taint) = criteria.kept_away_from(&self.pools)?;
        let DeviceTaint { key, value, effect, .. } = taint;
        let value = value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        Some(format!(
            "device {pool}/{} of {driver} is kept from the pod by the taint {key}{value}:{effect}, which its claims do not \
             tolerate",
            device.name
        ))
    }
}
