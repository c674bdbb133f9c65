//! The manifests below `deploy/kubernetes`: Kubernetes understands all of them, and they agree with each other and with
//! everything else that is shipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use aliquot_deployment::pod_monitor::{self, PodMonitor};
use aliquot_deployment::{directory, documents, files, object, objects, repository};
use aliquot_manager::config::{Config, Settings};
use k8s_openapi::Resource as _;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, PodSpec, SecurityContext};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::resource::v1::DeviceClass;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

/// The ways in which pods ask for slices, each in a directory of its name.
const MODES: [&str; 2] = ["dra", "device-plugin"];

fn pod() -> PodSpec {
    object::<DaemonSet>("base", "aliquot-manager").spec.template.spec.unwrap()
}

fn manager() -> Container {
    pod().containers.remove(0)
}

fn relay() -> Container {
    let pod = pod();
    pod.containers.into_iter().find(|container| container.name == "relay").unwrap()
}

fn security(container: &Container) -> SecurityContext {
    container.security_context.clone().unwrap_or_default()
}

/// The values of all fields `key` in `value`, at any depth.
fn values<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key));
            fields.values().for_each(|value| values(value, key, found));
        }
        Value::Array(items) => items.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

fn texts(part: &str, key: &str) -> BTreeSet<String> {
    let contents: Vec<Value> = objects(part).into_iter().map(|object| object.content).collect();
    texts_in(&contents, key).into_iter().collect()
}

/// The texts of all fields `key` in `documents`.
fn texts_in(documents: &[Value], key: &str) -> Vec<String> {
    let mut found = Vec::new();
    documents.iter().for_each(|document| values(document, key, &mut found));
    found.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn kubernetes_understands_every_field_of_every_manifest() {
    let objects = objects("");
    assert!(objects.len() > 15, "{} objects", objects.len());
    for object in objects {
        let ignored = object.ignored();
        assert!(ignored.is_empty(), "{}: {} {}: {ignored:#?}", object.file.display(), object.kind(), object.name());
    }
}

#[test]
fn a_field_that_kubernetes_does_not_know_is_noticed() {
    let mut object = objects("base").into_iter().find(|object| object.kind() == "DaemonSet").unwrap();
    object.content["spec"]["template"]["spec"]["hostPid"] = true.into();
    object.content["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["ad"] =
        "KILL".into();
    let ignored = object.ignored();
    assert_eq!(
        ignored,
        [".spec.template.spec.containers[0].securityContext.capabilities.ad", ".spec.template.spec.hostPid"]
    );
}

#[test]
fn every_manifest_is_in_a_kustomization_or_an_example() {
    for dir in MODES.into_iter().chain(["base", "scheduler"]) {
        let kustomization = documents(&directory().join(dir).join("kustomization.yaml")).remove(0);
        let resources: BTreeSet<&str> =
            kustomization["resources"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
        for file in files(&directory().join(dir), "yaml") {
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(name == "kustomization.yaml" || resources.contains(name), "{}", file.display());
        }
        for name in resources {
            assert!(directory().join(dir).join(name).exists(), "{dir}: {name}");
        }
        for component in kustomization["components"].as_array().into_iter().flatten().flat_map(Value::as_str) {
            assert!(directory().join(dir).join(component).join("kustomization.yaml").exists(), "{dir}: {component}");
        }
    }
}

#[test]
fn the_managers_configurations_are_valid_and_see_the_node_where_the_pod_has_it() {
    let host = manager().volume_mounts.unwrap().into_iter().find(|mount| mount.name == "host").unwrap();
    for mode in MODES {
        let file = directory().join(mode).join("manager.toml");
        Config::load(Settings::default(), Some(&file)).unwrap_or_else(|error| panic!("{error}"));
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("host_root = {:?}\n", host.mount_path)), "{text}");
        assert!(text.contains(&format!("[kubernetes]\nmode = {mode:?}\n")), "{text}");
        let port = manager().ports.unwrap().remove(0).container_port;
        assert!(text.contains(&format!("metrics_address = \"0.0.0.0:{port}\"\n")), "{text}");
    }
}

#[test]
fn the_manager_has_the_capabilities_that_its_unit_has_and_no_other_privilege() {
    let context = security(&manager());
    assert_eq!(context.privileged, None);
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.drop, Some(vec!["ALL".into()]));
    let added: BTreeSet<String> = capabilities.add.unwrap().into_iter().map(|name| format!("CAP_{name}")).collect();
    let unit = fs::read_to_string(repository().join("deploy/systemd/aliquot-manager.service")).unwrap();
    let bound = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    assert_eq!(added, bound.split(' ').map(str::to_owned).collect());
}

/// NVIDIA's container runtime does not start a container that asks to see or change MIG instances without the
/// capability SYS_ADMIN.
#[test]
fn who_asks_nvidia_s_runtime_for_mig_has_the_capability_for_it() {
    let components = files(&directory().join("components"), "yaml");
    assert!(components.len() > 2, "{components:?}");
    for file in components {
        let patches: String = texts_in(&documents(&file), "patch").concat();
        let asks = ["NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES"].map(|name| patches.contains(name));
        assert_eq!(asks.contains(&true), patches.contains("value: SYS_ADMIN"), "{}", file.display());
    }
}

/// The directories of the node that a container may write. They have the same path on both sides: containers and
/// kubelet are told of them.
fn written_by(container: Container) -> BTreeSet<String> {
    let volumes = pod().volumes.unwrap();
    let writable = container.volume_mounts.unwrap().into_iter().filter(|mount| mount.read_only != Some(true));
    writable
        .map(|mount| {
            let volume = volumes.iter().find(|volume| volume.name == mount.name).unwrap();
            assert_eq!(volume.host_path.as_ref().unwrap().path, mount.mount_path);
            mount.mount_path
        })
        .collect()
}

#[test]
fn the_manager_writes_what_outlives_its_pod_and_the_relay_sockets_only() {
    assert_eq!(written_by(manager()), ["/run/aliquot", "/var/lib/aliquot", "/var/run/cdi"].map(String::from).into());
    let sockets = ["/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry"];
    assert_eq!(written_by(relay()), sockets.map(String::from).into());
}

/// CRI-O mounts a directory that contains its own storage with mount propagation, and starts no container that asks to
/// have such a mount read-only recursively (`IfPossible` too). The node's root contains every storage.
#[test]
fn cri_o_can_mount_the_node_s_root_into_the_manager() {
    let host = manager().volume_mounts.unwrap().into_iter().find(|mount| mount.name == "host").unwrap();
    assert_eq!(host.read_only, Some(true));
    assert!(host.recursive_read_only.is_none_or(|how| how == "Disabled"));
}

#[test]
fn the_relay_has_no_privilege() {
    let context = security(&relay());
    assert_eq!((context.privileged, context.allow_privilege_escalation), (None, Some(false)));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    let capabilities = context.capabilities.unwrap();
    assert_eq!((capabilities.drop, capabilities.add), (Some(vec!["ALL".into()]), None));
}

#[test]
fn only_the_manager_has_the_token_and_all_that_a_client_in_the_cluster_reads() {
    assert_eq!(pod().automount_service_account_token, Some(false));
    let volume = pod().volumes.unwrap().into_iter().find(|volume| volume.name == "service-account").unwrap();
    let mut paths = BTreeSet::new();
    for source in volume.projected.unwrap().sources.unwrap() {
        paths.extend(source.service_account_token.map(|token| token.path));
        paths.extend(source.config_map.into_iter().flat_map(|map| map.items).flatten().map(|item| item.path));
        paths.extend(source.downward_api.into_iter().flat_map(|of_pod| of_pod.items).flatten().map(|item| item.path));
    }
    assert_eq!(paths, ["ca.crt", "namespace", "token"].map(String::from).into());
    let pod = pod();
    let mounts = |container: &Container| -> Vec<String> {
        let all = container.volume_mounts.iter().flatten().filter(|mount| mount.name == "service-account");
        all.map(|mount| mount.mount_path.clone()).collect()
    };
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        let expected: &[&str] = match container.name.as_str() {
            "manager" => &["/var/run/secrets/kubernetes.io/serviceaccount"],
            _ => &[],
        };
        assert_eq!(mounts(container), expected, "{}", container.name);
    }
}

#[test]
fn an_upgrade_starts_the_new_pod_first_whose_manager_stands_by_and_leaves_pods_alone() {
    let update = object::<DaemonSet>("base", "aliquot-manager").spec.update_strategy.unwrap();
    assert_eq!(update.type_.as_deref(), Some("RollingUpdate"));
    let rolling = serde_json::to_value(update.rolling_update.unwrap()).unwrap();
    assert_eq!(rolling, serde_json::json!({"maxSurge": 1, "maxUnavailable": 0}));
    assert_eq!(manager().args, Some(vec!["--stand-by".into()]));
    assert_eq!(relay().args, Some(vec!["--relay".into()]));
    let uid = relay().env.unwrap().remove(0);
    assert_eq!(uid.name, "POD_UID");
    assert_eq!(uid.value_from.unwrap().field_ref.unwrap().field_path, "metadata.uid");
    for mode in MODES {
        let file = directory().join(mode).join("manager.toml");
        assert!(Config::load(Settings::default(), Some(&file)).unwrap().kubernetes.unwrap().relay, "{mode}");
    }
    // Two of these pods are on a node for a while, so neither may take a port of the node.
    assert!(pod().host_network.is_none() && manager().ports.unwrap().iter().all(|port| port.host_port.is_none()));
    // Regions on the node, not in a volume that goes with the pod.
    let volumes = pod().volumes.unwrap();
    let outlives = |volume: &k8s_openapi::api::core::v1::Volume| {
        volume.host_path.is_some() || volume.config_map.is_some() || volume.projected.is_some()
    };
    assert!(volumes.iter().all(outlives), "{volumes:?}");
}

#[test]
fn one_image_is_used_and_it_is_the_one_that_the_script_makes() {
    let images = texts("base", "image");
    // This package has the workspace's version.
    assert_eq!(images, BTreeSet::from([concat!("localhost/aliquot:", env!("CARGO_PKG_VERSION")).to_owned()]));
}

#[test]
fn every_right_has_its_reason_beside_it() {
    for mode in MODES {
        let file = directory().join(mode).join("rbac.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("  - apiGroups:")) {
            // A rule that follows another one without a comment shares its reason.
            let reason = lines[..at].iter().rev().find(|line| line.starts_with("  #") || line.starts_with("rules:"));
            assert!(reason.is_some_and(|line| line.starts_with("  #")), "{}:{}", file.display(), at + 1);
        }
        let role: ClusterRole = object(mode, &format!("aliquot-manager-{mode}"));
        for rule in role.rules.unwrap() {
            let all = [rule.api_groups, Some(rule.verbs), rule.resources].into_iter().flatten().flatten();
            assert_eq!(all.filter(|text| text.contains('*')).count(), 0, "{mode}: a right to everything");
        }
        let binding: ClusterRoleBinding = object(mode, &format!("aliquot-manager-{mode}"));
        assert_eq!(binding.role_ref.name, format!("aliquot-manager-{mode}"));
        let subject = binding.subjects.unwrap().remove(0);
        assert_eq!(
            (subject.name, subject.namespace),
            (pod().service_account_name.unwrap(), Some("aliquot-system".into()))
        );
    }
}

#[test]
fn the_examples_name_what_there_is() {
    let classes = objects("dra").into_iter().filter(|object| object.kind() == DeviceClass::KIND);
    let classes: BTreeSet<String> = classes.map(|object| object.name().to_owned()).collect();
    let named = texts("examples/dra", "deviceClassName");
    assert!(!named.is_empty() && named.is_subset(&classes), "{named:?} {classes:?}");
    for object in objects("examples/dra") {
        let mut requests = Vec::new();
        values(&object.content, "capacity", &mut requests);
        for capacity in requests {
            let names: BTreeSet<&String> = capacity["requests"].as_object().unwrap().keys().collect();
            assert_eq!(names, BTreeSet::from([&"core".to_owned(), &"memory".to_owned()]), "{}", object.file.display());
        }
    }
    // Every claim and template that a pod names is made beside it.
    for file in files(&directory().join("examples/dra"), "yaml") {
        let documents = documents(&file);
        let (mut named, mut made) = (Vec::new(), Vec::new());
        for document in &documents {
            values(document, "resourceClaimName", &mut named);
            values(document, "resourceClaimTemplateName", &mut named);
            made.push(&document["metadata"]["name"]);
        }
        assert!(!named.is_empty() && named.iter().all(|name| made.contains(name)), "{}: {named:?}", file.display());
    }
}

#[test]
fn the_scheduler_is_probed_where_it_answers() {
    let deployment: Deployment = object("scheduler", "aliquot-scheduler");
    let container = deployment.spec.template.spec.unwrap().containers.remove(0);
    let port = container.ports.unwrap().remove(0);
    let metrics = format!("--metrics-address=0.0.0.0:{}", port.container_port);
    assert!(container.args.unwrap().contains(&metrics), "{metrics}");
    for (probe, path) in [(container.readiness_probe, "/readyz"), (container.liveness_probe, "/healthz")] {
        let get = probe.unwrap().http_get.unwrap();
        assert_eq!(get.path.as_deref(), Some(path));
        assert_eq!(get.port, IntOrString::String(port.name.clone().unwrap()));
    }
}

/// Changes `object` by a strategic merge, as kustomize does: `null` removes a field, lists of things with names are
/// merged by these names, and `$patch` replaces or deletes a whole value.
fn merge(object: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *object, patch) else {
        *object = patch.clone();
        return;
    };
    if changes.get("$patch").is_some_and(|how| how == "replace") {
        fields.clear();
    }
    for (key, change) in changes.iter().filter(|(key, _)| *key != "$patch") {
        match (fields.get_mut(key), change) {
            (_, Value::Null) => _ = fields.remove(key),
            (Some(Value::Array(items)), Value::Array(changes)) => {
                for change in changes {
                    let at = items.iter().position(|item| item["name"] == change["name"]);
                    match (at, change["$patch"] == "delete") {
                        (Some(at), true) => _ = items.remove(at),
                        (Some(at), false) => merge(&mut items[at], change),
                        (None, is_deleted) => items.extend((!is_deleted).then(|| change.clone())),
                    }
                }
            }
            (Some(field), change) => merge(field, change),
            (None, change) => _ = fields.insert(key.clone(), change.clone()),
        }
    }
}

/// Lays a component over the manager's DaemonSet.
fn lay(component: &str, daemon_set: &mut Value) {
    let file = directory().join("components").join(component).join("kustomization.yaml");
    for patch in documents(&file).remove(0)["patches"].as_array().unwrap() {
        let text = patch["patch"].as_str().unwrap();
        let patch: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        patch.iter().for_each(|patch| merge(daemon_set, patch));
    }
}

#[test]
fn a_privileged_manager_needs_no_runtime_class_also_where_there_was_one() {
    let bare = objects("base").into_iter().find(|object| object.kind() == "DaemonSet").unwrap().content;
    let [mut once, mut twice] = [bare.clone(), bare.clone()];
    lay("privileged", &mut once);
    // As `dra` and `device-plugin` have it, and a kustomization of one's own then lays the other one over it.
    lay("nvidia-runtime", &mut twice);
    assert_eq!(twice["spec"]["template"]["spec"]["runtimeClassName"], "nvidia");
    assert_ne!(twice, bare);
    lay("privileged", &mut twice);
    assert_eq!(once, twice);
    let spec = &once["spec"]["template"]["spec"];
    assert_eq!(spec.get("runtimeClassName"), None);
    let expected = serde_json::json!({"privileged": true, "readOnlyRootFilesystem": true});
    assert_eq!(spec["containers"][0]["securityContext"], expected);
}

/// The labels at which a manager leaves a node count with the component too, which says where managers are.
#[test]
fn managers_only_on_nodes_with_gpus_leave_by_the_same_labels() {
    const TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let base = serde_json::to_value(object::<DaemonSet>("base", "aliquot-manager").spec.template).unwrap();
    let [base] = base.pointer(TERMS).unwrap().as_array().unwrap().as_slice() else { panic!("one term: {base}") };
    let leaves = base["matchExpressions"].as_array().unwrap();
    assert!(!leaves.is_empty() && leaves.iter().all(|expression| expression["operator"] == "NotIn"), "{leaves:?}");

    let file = directory().join("components/gpu-nodes/kustomization.yaml");
    let patch = texts_in(&documents(&file), "patch").remove(0);
    let operations: Vec<Value> = serde_saphyr::from_str(&patch).unwrap();
    let [operation] = operations.as_slice() else { panic!("one operation: {operations:?}") };
    assert_eq!((&operation["op"], &operation["path"]), (&"replace".into(), &format!("/spec/template{TERMS}").into()));
    for term in operation["value"].as_array().unwrap() {
        let expressions = term["matchExpressions"].as_array().unwrap();
        assert!(leaves.iter().all(|leaves| expressions.contains(leaves)), "{term}");
        assert_eq!(expressions.iter().filter(|expression| expression["operator"] == "In").count(), 1, "{term}");
    }
}

#[test]
fn each_pod_monitor_names_a_port_of_the_pods_of_its_own_name() {
    let manager = object::<DaemonSet>("base", "aliquot-manager").spec.template;
    let scheduler = object::<Deployment>("scheduler", "aliquot-scheduler").spec.template;
    let mut pods = BTreeMap::from([("aliquot-manager", manager), ("aliquot-scheduler", scheduler)]);
    for object in objects("components/monitoring").iter().filter(|object| object.kind() == pod_monitor::KIND) {
        let monitor: PodMonitor = object.read();
        let pod = pods.remove(object.name()).unwrap();
        assert_eq!(monitor.metadata.namespace.as_deref(), Some("aliquot-system"));
        let labels = pod.metadata.unwrap().labels.unwrap();
        let selected = monitor.spec.selector.match_labels.unwrap();
        assert!(!selected.is_empty());
        assert!(selected.iter().all(|(key, value)| labels.get(key) == Some(value)), "{selected:?}");
        let containers = pod.spec.unwrap().containers;
        let ports: Vec<_> = containers.into_iter().flat_map(|container| container.ports.unwrap_or_default()).collect();
        for endpoint in monitor.spec.pod_metrics_endpoints {
            assert!(ports.iter().any(|port| port.name.as_ref() == Some(&endpoint.port)), "{}", endpoint.port);
        }
    }
    assert!(pods.is_empty(), "without a monitor: {:?}", pods.keys());
}
