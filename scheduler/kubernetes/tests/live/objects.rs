//! The objects of an API server: of the project's own, or of a real one.
//!
//! ```sh
//! kubectl create namespace aliquot-system
//! kubectl apply -k deploy/kubernetes/scheduler
//! ALIQUOT_TEST_KUBECONFIG=... cargo test -p aliquot-kubernetes-scheduler --test live
//! ```
//!
//! The kubeconfig has an administrator's rights. **The tests delete all nodes, pods, volumes and queues**, so the
//! cluster must be one that nobody uses: an API server with etcd, of Kubernetes 1.36 with the features `GenericWorkload`,
//! `GangScheduling`, `DRADeviceTaintRules` and `DRAWorkloadResourceClaims` and the APIs `scheduling.k8s.io/v1alpha2` and
//! `resource.k8s.io/v1beta2`, and without kubelets, controllers and schedulers. The namespace `default` needs the
//! service account `default`. The scheduler has the rights of its manifests. Tests that need faults keep to the
//! project's own API server.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_api_server::connect;
use aliquot_test_api_server::{
    ApiServer, BUDGETS, CLAIMS, CORE_EVENTS, DEVICE_CLASSES, DEVICE_TAINT_RULES, ELASTIC_GPU_CLAIMS,
    ELASTIC_GPU_CLASSES, ELASTIC_GPUS, JOBS, NODES, POD_GROUPS, PODS, QUEUES, Resource, SCHEDULING_POLICIES, SLICES,
    STORAGE_CLASSES, Store, VOLUME_CLAIMS, VOLUMES,
};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// There is one real cluster.
static ONE: Mutex<()> = Mutex::new(());

pub(crate) enum Objects {
    Own { server: ApiServer, store: Store, client: Client, runtime: Runtime },
    Real { client: Client, runtime: Runtime, _only: MutexGuard<'static, ()> },
}

impl Objects {
    /// Writes a file by which schedulers find the API server.
    pub(crate) fn start(kubeconfig: &Path) -> Objects {
        match std::env::var_os("ALIQUOT_TEST_KUBECONFIG") {
            Some(file) => Objects::real(&PathBuf::from(file), kubeconfig),
            None => Objects::with_faults(kubeconfig),
        }
    }

    /// Whether it is a real API server. That refuses what the rules of a kind forbid, and drops fields whose feature is off.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Objects::Real { .. })
    }

    pub(crate) fn with_faults(kubeconfig: &Path) -> Objects {
        let runtime = Runtime::new().unwrap();
        let server = ApiServer::start(runtime.handle());
        server.write_kubeconfig(kubeconfig);
        let client = runtime.block_on(connect(Some(kubeconfig))).unwrap();
        Objects::Own { store: server.store(), server, client, runtime }
    }

    fn real(of_administrator: &Path, of_scheduler: &Path) -> Objects {
        let only = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = Runtime::new().unwrap();
        let administrator = Kubeconfig::read_from(of_administrator).unwrap();
        let client = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(administrator, &options).await.unwrap();
            let client = Client::try_from(config).unwrap();
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "aliquot-system");
            let request = TokenRequest::default();
            let granted = accounts.create_token_request("aliquot-scheduler", &Default::default(), &request).await;
            let token = granted.unwrap().status.unwrap().token;
            let mut config: Value =
                serde_saphyr::from_str(&std::fs::read_to_string(of_administrator).unwrap()).unwrap();
            for user in config["users"].as_array_mut().unwrap() {
                user["user"] = json!({"token": token});
            }
            std::fs::write(of_scheduler, config.to_string()).unwrap();
            client
        });
        let objects = Objects::Real { client, runtime, _only: only };
        objects.clear();
        objects
    }

    pub(crate) fn server(&self) -> &ApiServer {
        match self {
            Objects::Own { server, .. } => server,
            Objects::Real { .. } => panic!("a real API server makes no faults at will"),
        }
    }

    /// A client, and where it runs.
    pub(crate) fn client(&self) -> (Client, &Runtime) {
        match self {
            Objects::Own { client, runtime, .. } | Objects::Real { client, runtime, .. } => (client.clone(), runtime),
        }
    }

    /// Removes what an earlier test has left.
    fn clear(&self) {
        let kinds = [
            (&JOBS, "default"),
            (&PODS, "default"),
            (&NODES, ""),
            (&VOLUME_CLAIMS, "default"),
            (&VOLUMES, ""),
            (&STORAGE_CLASSES, ""),
            (&BUDGETS, "default"),
            (&POD_GROUPS, "default"),
            (&QUEUES, ""),
            (&SCHEDULING_POLICIES, ""),
            (&ELASTIC_GPU_CLAIMS, "default"),
            (&ELASTIC_GPUS, ""),
            (&ELASTIC_GPU_CLASSES, ""),
            (&CORE_EVENTS, "default"),
            (&CLAIMS, "default"),
            (&SLICES, ""),
            (&DEVICE_TAINT_RULES, ""),
            (&DEVICE_CLASSES, ""),
        ];
        for (resource, namespace) in kinds {
            for object in self.list(resource) {
                let name = object["metadata"]["name"].as_str().unwrap();
                // Nobody is there who would do what finalizers wait for.
                self.merge(resource, namespace, name, &json!({"metadata": {"finalizers": null}}));
                self.delete(resource, namespace, name);
            }
        }
        let none = json!({"aliquot.dev/queue": null, "resource.kubernetes.io/admin-access": null});
        let labels = json!({"metadata": {"labels": none}});
        self.merge(&aliquot_test_api_server::NAMESPACES, "", "default", &labels);
    }

    #[track_caller]
    pub(crate) fn create(&self, resource: &'static Resource, namespace: &str, object: Value) {
        match self {
            Objects::Own { store, .. } => _ = store.create(resource, namespace, object).unwrap(),
            Objects::Real { client, runtime, .. } => {
                let object = self.with_priority_class(object);
                let object: DynamicObject = serde_json::from_value(object).unwrap();
                runtime.block_on(api(client, resource, namespace).create(&Default::default(), &object)).unwrap();
            }
        }
    }

    /// Makes an object, or makes one that is there like this.
    #[track_caller]
    pub(crate) fn replace(&self, resource: &'static Resource, namespace: &str, object: Value) {
        match self {
            Objects::Own { .. } => self.create(resource, namespace, object),
            Objects::Real { .. } => {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                self.merge(resource, namespace, &name, &object);
            }
        }
    }

    #[track_caller]
    pub(crate) fn merge(&self, resource: &'static Resource, namespace: &str, name: &str, patch: &Value) {
        match self {
            Objects::Own { store, .. } => _ = store.merge(resource, namespace, name, false, patch).unwrap(),
            Objects::Real { client, runtime, .. } => {
                let (api, patch) = (api(client, resource, namespace), Patch::Merge(patch));
                runtime.block_on(api.patch(name, &PatchParams::default(), &patch)).unwrap();
            }
        }
    }

    #[track_caller]
    pub(crate) fn merge_status(&self, resource: &'static Resource, namespace: &str, name: &str, patch: &Value) {
        match self {
            Objects::Own { store, .. } => _ = store.merge(resource, namespace, name, true, patch).unwrap(),
            Objects::Real { client, runtime, .. } => {
                let (api, patch) = (api(client, resource, namespace), Patch::Merge(patch));
                runtime.block_on(api.patch_status(name, &PatchParams::default(), &patch)).unwrap();
            }
        }
    }

    #[track_caller]
    pub(crate) fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Value {
        match self {
            Objects::Own { store, .. } => store.get(resource, namespace, name).unwrap(),
            Objects::Real { client, runtime, .. } => {
                serde_json::to_value(runtime.block_on(api(client, resource, namespace).get(name)).unwrap()).unwrap()
            }
        }
    }

    pub(crate) fn list(&self, resource: &'static Resource) -> Vec<Value> {
        match self {
            Objects::Own { store, .. } => store.list(resource),
            Objects::Real { client, runtime, .. } => {
                // Of all that is in namespaces, the tests use one, and the schedulers' leases are in another one.
                let namespace = match resource.plural {
                    "leases" => "aliquot-system",
                    _ if resource.namespaced => "default",
                    _ => "",
                };
                let listed = runtime.block_on(api(client, resource, namespace).list(&ListParams::default())).unwrap();
                listed.items.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
            }
        }
    }

    /// Deletes at once.
    #[track_caller]
    pub(crate) fn delete(&self, resource: &'static Resource, namespace: &str, name: &str) {
        match self {
            Objects::Own { store, .. } => store.delete(resource, namespace, name, true).unwrap(),
            Objects::Real { client, runtime, .. } => {
                let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
                match runtime.block_on(api(client, resource, namespace).delete(name, &now)) {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    done => _ = done.unwrap(),
                }
            }
        }
    }

    /// A real API server computes a pod's priority from its class.
    fn with_priority_class(&self, mut object: Value) -> Value {
        let Objects::Real { client, runtime, .. } = self else { return object };
        let Some(priority) = object["spec"]["priority"].as_i64().filter(|_| object["kind"] == "Pod") else {
            return object;
        };
        let name = format!("test-{priority}");
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": priority,
        });
        let kind = GroupVersionKind::gvk("scheduling.k8s.io", "v1", "PriorityClass");
        let classes: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        let class: DynamicObject = serde_json::from_value(class).unwrap();
        match runtime.block_on(classes.create(&Default::default(), &class)) {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            made => assert_eq!(made.unwrap().name_any(), name),
        }
        let spec = object["spec"].as_object_mut().unwrap();
        spec.remove("priority");
        spec.insert("priorityClassName".into(), name.into());
        object
    }
}

fn api(client: &Client, resource: &Resource, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(resource.group, resource.version, resource.kind);
    let kind = ApiResource::from_gvk_with_plural(&kind, resource.plural);
    match namespace {
        "" => Api::all_with(client.clone(), &kind),
        namespace => Api::namespaced_with(client.clone(), namespace, &kind),
    }
}
