//! Writes the prepared slices into the claim's status: for people, and for tools that show which slices a pod has.

use aliquot_node::{Part, Slice, SliceRequest};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::allocation::AllocatedDevice;
use super::names::{DRIVER, device_name};
use super::prepared_claims::Record;

/// Writes the claim's slices into its status: `made`, in the record's order.
///
/// # Errors
/// The API server does not answer, or refuses.
pub(super) async fn publish(client: &kube::Client, record: &Record, made: &[Slice]) -> Result<(), kube::Error> {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &record.namespace);
    let status = status(record, made, Time(Timestamp::now()));
    let params = PatchParams::apply(DRIVER).force();
    claims.patch_status(&record.name, &params, &Patch::Apply(status)).await.map(drop)
}

/// The status to apply. It contains the claim's UID, so that another claim of the same name does not get it.
fn status(record: &Record, made: &[Slice], now: Time) -> Value {
    let slices = record.slices.iter().zip(made);
    let devices = slices.flat_map(|(slice, made)| slice.devices.iter().map(move |device| (device, made)));
    let devices: Vec<Value> =
        devices.map(|(device, made)| device_status(device, &made.content, &made.cdi_device, &now)).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": record.name, "namespace": record.namespace, "uid": record.uid.as_str()},
        "status": {"devices": devices},
    })
}

fn device_status(device: &AllocatedDevice, slice: &SliceRequest, cdi_device: &str, now: &Time) -> Value {
    let is_its = |part: &&Part| match &device.instance_uuid {
        Some(uuid) => part.device_uuid == *uuid,
        None => device_name(&part.device_uuid).as_deref() == Some(device.device.as_str()),
    };
    let part = slice.parts.iter().find(is_its);
    let mut status = json!({
        "driver": DRIVER,
        "pool": device.pool,
        "device": device.device,
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "SlicePrepared",
            "message": format!("containers get it as {cdi_device}"),
            "lastTransitionTime": now,
        }],
        "data": {
            "apiVersion": "gpu.aliquot.dev/v1alpha1",
            "kind": "SliceStatus",
            "slice": slice.name,
            "cdiDevice": cdi_device,
            "deviceUUID": part.map(|part| part.device_uuid.as_str()),
            "coreRequestPercent": part.map(|part| part.core_request_percent),
            "coreLimitPercent": part.map(|part| part.core_limit_percent),
            "memoryLimitBytes": part.map(|part| part.memory_limit_bytes),
            "priorityClass": slice.qos_class,
        },
    });
    if let Some(share_id) = &device.share_id {
        status["shareID"] = json!(share_id);
    }
    status
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dra::allocation::ClaimSlice;
    use crate::dra::names::ClaimUid;
    use crate::dra::prepared_claims::Phase;

    #[test]
    fn each_share_of_a_device_has_a_status() {
        let part = Part {
            device_uuid: "GPU-A".into(),
            core_request_percent: 30,
            core_limit_percent: 80,
            memory_limit_bytes: 1 << 30,
        };
        let slice = SliceRequest { name: "claim-u".into(), parts: vec![part], ..SliceRequest::default() };
        let device = |share: Option<&str>| AllocatedDevice {
            request: "gpu".into(),
            pool: "node-1".into(),
            device: "gpu-a".into(),
            share_id: share.map(Into::into),
            ..AllocatedDevice::default()
        };
        let record = Record {
            uid: ClaimUid::parse("u").unwrap(),
            namespace: "team".into(),
            name: "train".into(),
            phase: Phase::Completed,
            boot_id: String::new(),
            slices: ["claim-u.0", "claim-u.1"]
                .map(|name| ClaimSlice {
                    slice: SliceRequest { name: name.into(), ..slice.clone() },
                    devices: vec![device(Some("s-1")), device(None)],
                    ..ClaimSlice::default()
                })
                .into(),
        };
        let made = record.slices.iter().map(|slice| Slice {
            content: slice.slice.clone(),
            cdi_device: format!("aliquot.dev/slice={}", slice.slice.name),
            processes: 0,
            consumers: BTreeSet::new(),
        });
        let status = status(&record, &made.collect::<Vec<_>>(), Time(Timestamp::UNIX_EPOCH));
        assert_eq!(status["metadata"], json!({"name": "train", "namespace": "team", "uid": "u"}));
        let devices = status["status"]["devices"].as_array().unwrap();
        let slices: Vec<&str> = devices.iter().map(|device| device["data"]["slice"].as_str().unwrap()).collect();
        assert_eq!(slices, ["claim-u.0", "claim-u.0", "claim-u.1", "claim-u.1"]);
        assert_eq!((&devices[0]["shareID"], devices[1].get("shareID")), (&json!("s-1"), None));
        assert_eq!(devices[0]["data"]["coreLimitPercent"], json!(80));
        assert_eq!(devices[0]["conditions"][0]["lastTransitionTime"], json!("1970-01-01T00:00:00Z"));
    }
}
