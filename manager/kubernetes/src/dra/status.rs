//! What was prepared, in the claim's status: for people, and for tools that show which slice a pod has.

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tracing::warn;

use super::allocation::AllocatedDevice;
use super::checkpoint::Record;
use super::names::{DRIVER, device_name};
use crate::api_server::message;
use crate::node::{Part, SliceRequest};

/// Says in the claim's status what its slice is. A failure is logged, and nothing else: the pod runs without it.
pub(super) async fn publish(client: &kube::Client, record: &Record, slice: &SliceRequest, cdi_device: &str) {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &record.namespace);
    let status = status(record, slice, cdi_device, Time(Timestamp::now()));
    let params = PatchParams::apply(DRIVER).force();
    if let Err(error) = claims.patch_status(&record.name, &params, &Patch::Apply(status)).await {
        let Record { namespace, name, .. } = record;
        warn!(namespace, name, error = message(&error), "cannot publish the status of a claim's devices");
    }
}

/// What is applied. It names the claim's UID, so that another claim of the same name does not get it.
fn status(record: &Record, slice: &SliceRequest, cdi_device: &str, now: Time) -> Value {
    let devices: Vec<Value> =
        record.devices.iter().map(|device| device_status(device, slice, cdi_device, &now)).collect();
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
            "priorityClass": slice.priority_class,
        },
    });
    if let Some(share_id) = &device.share_id {
        status["shareID"] = json!(share_id);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::checkpoint::Phase;
    use crate::dra::names::ClaimUid;

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
            slice: slice.clone(),
            devices: vec![device(Some("s-1")), device(None)],
        };
        let status = status(&record, &slice, "aliquot.dev/slice=claim-u", Time(Timestamp::UNIX_EPOCH));
        assert_eq!(status["metadata"], json!({"name": "train", "namespace": "team", "uid": "u"}));
        let devices = status["status"]["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!((&devices[0]["shareID"], devices[1].get("shareID")), (&json!("s-1"), None));
        assert_eq!(devices[0]["data"]["coreLimitPercent"], json!(80));
        assert_eq!(devices[0]["conditions"][0]["lastTransitionTime"], json!("1970-01-01T00:00:00Z"));
    }
}
