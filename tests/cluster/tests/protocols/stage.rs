//! A cluster with containers that are only recorded, and objects for it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_test_cluster::{CLAIMS, Cluster, DEVICE_CLASSES, NODE_NAME, Paper, SLICES, Timing};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The name of these tests' driver.
pub(crate) const DRIVER: &str = "gpu.example.org";

/// A cluster, and the directory in which its runtime looks for CDI devices.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    cdi: TempDir,
}

impl Stage {
    /// A new cluster. Its kubelet deletes the slices of a missing driver only after more time than any test takes.
    pub(crate) fn new() -> Stage {
        Stage::with_wipe(Timing::default().wipe)
    }

    /// The same, with this wait before kubelet deletes the slices of a missing driver.
    pub(crate) fn with_wipe(wipe: Duration) -> Stage {
        let cdi = tempfile::tempdir().unwrap();
        let runtime = Arc::new(Paper::new(cdi.path().to_owned()));
        let timing = Timing { retry: Duration::from_millis(10), wipe, ..Timing::default() };
        let cluster = Cluster::with(runtime, timing);
        cluster.create(
            &DEVICE_CLASSES,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
                "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
            }),
        );
        Stage { cluster, cdi }
    }

    pub(crate) fn cdi_directory(&self) -> PathBuf {
        self.cdi.path().to_owned()
    }

    /// Publishes a CDI device that sets a variable to its own name.
    pub(crate) fn publish_cdi(&self, name: &str) {
        publish_cdi(&self.cdi_directory(), name);
    }

    /// Publishes these devices in one slice.
    pub(crate) fn publish(&self, devices: &Value) {
        self.cluster.create(&SLICES, slice("slice-1", 1, devices));
    }

    /// Makes a claim with one request for devices of the driver's class.
    pub(crate) fn claim(&self, name: &str, request: &Value) {
        let mut exactly = json!({"deviceClassName": DRIVER});
        for (key, value) in request.as_object().into_iter().flatten() {
            exactly[key] = value.clone();
        }
        self.claim_of(name, &json!({"requests": [{"name": "gpu", "exactly": exactly}]}));
    }

    pub(crate) fn claim_of(&self, name: &str, devices: &Value) {
        self.cluster.create(
            &CLAIMS,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
                "spec": {"devices": devices},
            }),
        );
    }
}

pub(crate) fn publish_cdi(directory: &std::path::Path, name: &str) {
    let file = json!({
        "cdiVersion": "0.5.0", "kind": "example.org/claim",
        "devices": [{"name": name, "containerEdits": {"env": [format!("CLAIM={name}")]}}],
    });
    fs::write(directory.join(format!("{name}.json")), file.to_string()).unwrap();
}

/// A slice of the cluster's node.
pub(crate) fn slice(name: &str, count: i64, devices: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": DRIVER, "nodeName": NODE_NAME,
            "pool": {"name": NODE_NAME, "generation": 1, "resourceSliceCount": count}, "devices": devices,
        },
    })
}

/// A device that many claims share.
pub(crate) fn shared_device(name: &str) -> Value {
    json!({
        "name": name, "allowMultipleAllocations": true,
        "attributes": {"model": {"string": "H100"}, "index": {"int": 0}},
        "capacity": {
            "core": {"value": "100", "requestPolicy": {
                "default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}}},
            "memory": {"value": "80Gi", "requestPolicy": {
                "default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}}},
        },
    })
}

/// A request for a part of a shared device.
pub(crate) fn part(core: u32, memory: &str) -> Value {
    json!({"capacity": {"requests": {"core": core.to_string(), "memory": memory}}})
}

/// A pod with one container that uses these claims.
pub(crate) fn pod_with(claims: &[&str]) -> Value {
    let named = claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim}));
    let used = claims.iter().map(|claim| json!({"name": claim}));
    json!({
        "restartPolicy": "Never", "resourceClaims": named.collect::<Vec<_>>(),
        "containers": [{"name": "main", "image": "none", "resources": {"claims": used.collect::<Vec<_>>()}}],
    })
}
