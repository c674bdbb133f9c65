//! The manifests of the managers' reports agree with each other, with the scheduler and with the manager.

use aliquot_deployment::{directory, documents, object, scheduler_with, with_component};
use aliquot_kubernetes::reports::AUDIENCE;
use aliquot_manager::config::{Config, Settings};
use clap::Parser;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{PodSpec, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

const COMPONENT: &str = "components/reports";
const NAME: &str = "aliquot-scheduler-reports";

/// The manager's pod, with the component.
fn manager() -> PodSpec {
    with_component::<DaemonSet>("base", "aliquot-manager", "reports").spec.template.spec.unwrap()
}

#[test]
fn managers_dial_where_the_scheduler_listens() {
    let service = object::<Service>(COMPONENT, NAME).spec.unwrap();
    // The name resolves to the addresses of all replicas.
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    let deployment: Deployment = object("scheduler", "aliquot-scheduler");
    assert_eq!(service.selector, deployment.spec.selector.match_labels);
    let port = service.ports.unwrap().remove(0);
    assert_eq!(port.target_port, Some(IntOrString::String("reports".into())));
    let scheduler = scheduler_with("reports").spec.template.spec.unwrap().containers.remove(0);
    let listens = scheduler.ports.unwrap().into_iter().find(|port| port.name.as_deref() == Some("reports")).unwrap();
    // Managers connect to the addresses of pods, so the service's port must be the pods' port.
    assert_eq!(listens.container_port, port.port);
    assert!(scheduler.args.unwrap().contains(&format!("--reports-address=0.0.0.0:{}", port.port)));
    let expected = format!("--reports-to={NAME}.aliquot-system.svc:{}", port.port);
    assert!(manager().containers[0].args.as_ref().unwrap().contains(&expected), "{expected}");
}

/// The manager's command line.
#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    stand_by: bool,
    #[command(flatten)]
    settings: Settings,
}

#[test]
fn the_manager_finds_its_token_where_it_looks() {
    let pod = manager();
    let container = &pod.containers[0];
    let arguments = Arguments::parse_from(
        std::iter::once("manager").chain(container.args.as_ref().unwrap().iter().map(String::as_str)),
    );
    assert!(arguments.stand_by);
    let file = directory().join("device-plugin/manager.toml");
    let config = Config::load(arguments.settings, Some(&file)).unwrap();
    let reports = config.kubernetes.unwrap().reports.unwrap();
    assert_eq!(reports.server_name, format!("{NAME}.aliquot-system.svc"));
    let mounts = container.volume_mounts.as_ref().unwrap();
    let mount = mounts.iter().find(|mount| reports.dir.to_str() == Some(mount.mount_path.as_str())).unwrap();
    assert_eq!(mount.read_only, Some(true));
    let volume = pod.volumes.unwrap().into_iter().find(|volume| volume.name == mount.name).unwrap();
    let sources = volume.projected.unwrap().sources.unwrap();
    let token = sources.iter().find_map(|source| source.service_account_token.as_ref()).unwrap();
    assert_eq!((token.audience.as_deref(), token.path.as_str()), (Some(AUDIENCE), "token"));
    let authority = sources.iter().find_map(|source| source.config_map.as_ref()).unwrap();
    // The manager starts before there is a scheduler.
    assert_eq!((authority.name.as_str(), authority.optional), (NAME, Some(true)));
    assert_eq!(authority.items.as_ref().unwrap()[0].path, "ca.crt");
    // No other container of the pod can join in the manager's place.
    for other in pod.containers.iter().skip(1).chain(pod.init_containers.iter().flatten()) {
        assert!(other.volume_mounts.iter().flatten().all(|of| of.name != mount.name), "{}", other.name);
    }
}

#[test]
fn rights_are_to_the_reports_own_objects_alone() {
    let role: Role = object(COMPONENT, NAME);
    for rule in role.rules.unwrap() {
        // A right to create objects cannot be limited to names.
        let makes = rule.verbs == ["create"];
        assert_eq!(rule.resource_names, (!makes).then(|| vec![NAME.to_owned()]), "{:?}", rule.resources);
    }
    let cluster_role: ClusterRole = object(COMPONENT, NAME);
    let rule = cluster_role.rules.unwrap().remove(0);
    assert_eq!((rule.resources, rule.verbs), (Some(vec!["tokenreviews".into()]), vec!["create".into()]));
}

#[test]
fn the_component_names_all_of_its_files() {
    let kustomization = documents(&directory().join(COMPONENT).join("kustomization.yaml")).remove(0);
    let named: Vec<&str> = kustomization["resources"].as_array().unwrap().iter().flat_map(|of| of.as_str()).collect();
    assert_eq!(named, ["rbac.yaml", "service.yaml"]);
    assert!(named.iter().all(|file| directory().join(COMPONENT).join(file).exists()));
}
