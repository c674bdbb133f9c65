//! The files below `deploy/`, as tests read them.

pub mod kube_scheduler;
pub mod pod_monitor;
pub mod prometheus_rule;

use std::fs;
use std::path::{Path, PathBuf};

use aliquot_kubernetes_scheduler::{ElasticGpuClaim, ElasticGpuClass, SchedulingPolicy};
use k8s_openapi::Resource;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An object that a manifest describes.
#[derive(Clone, Debug)]
pub struct Object {
    /// The manifest, below `deploy/kubernetes`.
    pub file: PathBuf,
    /// The object as JSON.
    pub content: Value,
}

impl Object {
    /// Its kind, for example `Pod`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.content["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.content["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The object as its Rust type.
    ///
    /// # Panics
    /// The object cannot be read as this type.
    #[must_use]
    pub fn read<K: DeserializeOwned>(&self) -> K {
        let read = serde_json::from_value(self.content.clone());
        read.unwrap_or_else(|error| panic!("{}: {} {}: {error}", self.file.display(), self.kind(), self.name()))
    }

    /// The fields of the object that Kubernetes would ignore, because the kind does not have them. Each by its path.
    ///
    /// # Panics
    /// The object cannot be read at all, or is of a kind that no test knows.
    #[must_use]
    pub fn ignored(&self) -> Vec<String> {
        let api = self.content["apiVersion"].as_str().unwrap_or_default();
        macro_rules! one_of {
            ($($kind:ty),*) => {
                match (api, self.kind()) {
                    $((<$kind>::API_VERSION, <$kind>::KIND) => self.ignored_by::<$kind>(),)*
                    ("aliquot.dev/v1alpha1", "SchedulingPolicy") => self.ignored_by::<SchedulingPolicy>(),
                    ("aliquot.dev/v1alpha1", "ElasticGPUClass") => self.ignored_by::<ElasticGpuClass>(),
                    ("aliquot.dev/v1alpha1", "ElasticGPUClaim") => self.ignored_by::<ElasticGpuClaim>(),
                    (kube_scheduler::API_VERSION, kube_scheduler::KIND) => {
                        self.ignored_by::<kube_scheduler::KubeSchedulerConfiguration>()
                    }
                    (pod_monitor::API_VERSION, pod_monitor::KIND) => self.ignored_by::<pod_monitor::PodMonitor>(),
                    (prometheus_rule::API_VERSION, prometheus_rule::KIND) => {
                        self.ignored_by::<prometheus_rule::PrometheusRule>()
                    }
                    _ => panic!("{}: no test knows {api} {}", self.file.display(), self.kind()),
                }
            };
        }
        one_of!(
            ClusterRole,
            ClusterRoleBinding,
            CustomResourceDefinition,
            DaemonSet,
            Deployment,
            DeviceClass,
            Job,
            MutatingWebhookConfiguration,
            Namespace,
            Pod,
            PodDisruptionBudget,
            PriorityClass,
            ResourceClaim,
            ResourceClaimTemplate,
            ResourceQuota,
            Role,
            RoleBinding,
            Service,
            ServiceAccount,
            ValidatingAdmissionPolicy,
            ValidatingAdmissionPolicyBinding,
            ValidatingWebhookConfiguration
        )
    }

    fn ignored_by<K: DeserializeOwned + Serialize>(&self) -> Vec<String> {
        let understood = serde_json::to_value(self.read::<K>()).expect("what was read can be written");
        let mut missing = Vec::new();
        compare(&self.content, &understood, "", &mut missing);
        missing
    }
}

/// Adds the paths of fields that are in `said` and not in `understood`.
fn compare(said: &Value, understood: &Value, path: &str, missing: &mut Vec<String>) {
    match (said, understood) {
        (Value::Object(said), Value::Object(understood)) => {
            for (key, value) in said {
                let path = format!("{path}.{key}");
                match understood.get(key) {
                    Some(known) => compare(value, known, &path, missing),
                    // Empty objects are left out when the object is written.
                    None if value.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    None => missing.push(path),
                }
            }
        }
        (Value::Array(said), Value::Array(understood)) if said.len() == understood.len() => {
            for (at, (said, understood)) in said.iter().zip(understood).enumerate() {
                compare(said, understood, &format!("{path}[{at}]"), missing);
            }
        }
        // A number, in a field for which Kubernetes takes a number or a text.
        (Value::Number(said), Value::String(understood)) if said.to_string() == *understood => {}
        _ if said == understood => {}
        _ => missing.push(format!("{path}: {said} is read as {understood}")),
    }
}

/// The repository's root directory.
///
/// # Panics
/// This package lies elsewhere than in `tests/deployment`.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package lies in tests/deployment")
}

/// The directory `deploy/kubernetes`.
#[must_use]
pub fn directory() -> PathBuf {
    repository().join("deploy/kubernetes")
}

/// The objects of the manifests in the folder `part` of `directory()`, without kustomizations.
///
/// # Panics
/// A file cannot be read.
#[must_use]
pub fn objects(part: &str) -> Vec<Object> {
    let mut objects = Vec::new();
    for file in files(&directory().join(part), "yaml") {
        if file.ends_with("kustomization.yaml") {
            continue;
        }
        objects.extend(documents(&file).into_iter().map(|content| {
            let file = file.strip_prefix(directory()).expect("below the directory").to_owned();
            Object { file, content }
        }));
    }
    objects
}

/// The documents in a file of YAML.
///
/// # Panics
/// It cannot be read.
#[must_use]
pub fn documents(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The scheduler's deployment with a component laid over it, as kustomize does it.
///
/// # Panics
/// The component does anything but adding to the deployment.
#[must_use]
pub fn scheduler_with(component: &str) -> Deployment {
    with_component("scheduler", "aliquot-scheduler", component)
}

/// An object of a part of the manifests with a component laid over it, as kustomize does it.
///
/// # Panics
/// The component does anything but adding to the object.
#[must_use]
pub fn with_component<K: Resource + DeserializeOwned>(part: &str, name: &str, component: &str) -> K {
    let mut object = object_content(part, K::KIND, name);
    let file = directory().join("components").join(component).join("kustomization.yaml");
    let component = documents(&file).remove(0);
    let target = serde_json::json!({"kind": K::KIND, "name": name});
    let mut patches = component["patches"].as_array().expect("patches").iter();
    let patch = patches.find(|patch| patch["target"] == target).expect("a patch for the object");
    let operations = patch["patch"].as_str().expect("a patch of operations");
    let operations: Vec<Value> = serde_saphyr::from_str(operations).expect("operations as YAML");
    for operation in operations {
        assert_eq!(operation["op"], "add");
        let path = operation["path"].as_str().expect("an operation has a path");
        let (place, key) = path.rsplit_once('/').expect("a path begins with a slash");
        let value = operation["value"].clone();
        match object.pointer_mut(place).unwrap_or_else(|| panic!("{place} is there")) {
            Value::Array(items) if key == "-" => items.push(value),
            Value::Object(fields) => assert!(fields.insert(key.to_owned(), value).is_none(), "{place}/{key} is new"),
            other => panic!("{place}: {other}"),
        }
    }
    serde_json::from_value(object).expect("the object is still one of its kind")
}

fn object_content(part: &str, kind: &str, name: &str) -> Value {
    let found = objects(part).into_iter().find(|object| object.kind() == kind && object.name() == name);
    found.unwrap_or_else(|| panic!("{part} has no {kind} {name}")).content
}

/// The files below `dir` whose names end in `.extension`, by name.
///
/// # Panics
/// A directory cannot be read.
#[must_use]
pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The one object of that kind and name in `part` of the manifests.
///
/// # Panics
/// There is none, or it cannot be read.
#[must_use]
pub fn object<K: Resource + DeserializeOwned>(part: &str, name: &str) -> K {
    let content = object_content(part, K::KIND, name);
    serde_json::from_value(content).unwrap_or_else(|error| panic!("{part}: {} {name}: {error}", K::KIND))
}
