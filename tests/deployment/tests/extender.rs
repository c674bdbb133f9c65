//! Kube-scheduler's example configuration and the manifests of the extender agree.

use std::time::Duration;

use aliquot_deployment::kube_scheduler::{KIND, KubeSchedulerConfiguration};
use aliquot_deployment::{object, objects, scheduler_with};
use aliquot_dialects::{Dialect, NodeFacts};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The pod of the scheduler's deployment with the component laid over it, as kustomize does it.
fn pod() -> PodSpec {
    scheduler_with("extender").spec.template.spec.unwrap()
}

fn scheduler() -> Container {
    pod().containers.remove(0)
}

fn configuration() -> KubeSchedulerConfiguration {
    objects("examples/kube-scheduler").into_iter().find(|object| object.kind() == KIND).unwrap().read()
}

/// The value of an argument of the scheduler.
fn argument(name: &str) -> String {
    let args = scheduler().args.unwrap();
    let found = args.iter().find_map(|arg| arg.strip_prefix(&format!("--{name}="))).map(str::to_owned);
    found.unwrap_or_else(|| panic!("--{name}: {args:?}"))
}

#[test]
fn kube_scheduler_asks_where_the_scheduler_answers() {
    let port = scheduler().ports.unwrap().into_iter().find(|port| port.name.as_deref() == Some("extender")).unwrap();
    let service: Service = object("components/extender", "aliquot-scheduler-extender");
    let spec = service.spec.unwrap();
    let of_service = spec.ports.unwrap().remove(0);
    assert_eq!(of_service.target_port, Some(IntOrString::String("extender".into())));
    assert_eq!(argument("extender-address"), format!("0.0.0.0:{}", port.container_port));
    assert_eq!(argument("extender-url"), format!("https://$(POD_IP):{}", port.container_port));
    let ip = scheduler().env.unwrap().into_iter().find(|variable| variable.name == "POD_IP").unwrap();
    assert_eq!(ip.value_from.unwrap().field_ref.unwrap().field_path, "status.podIP");
    let deployment: Deployment = object("scheduler", "aliquot-scheduler");
    assert_eq!(spec.selector, deployment.spec.selector.match_labels);
    let extender = configuration().extenders.remove(0);
    assert!(extender.url_prefix.ends_with(&format!(":{}", of_service.port)), "{}", extender.url_prefix);
    assert!(extender.enable_https && extender.url_prefix.starts_with("https://"));
    let name = format!("{}.{}.svc", service.metadata.name.unwrap(), service.metadata.namespace.unwrap());
    assert_eq!(extender.tls_config.server_name, name);
}

#[test]
fn the_certificate_is_where_the_scheduler_looks_for_it() {
    let volume = pod().volumes.unwrap().into_iter().find(|volume| volume.name == "extender").unwrap();
    assert_eq!(volume.secret.unwrap().secret_name.as_deref(), Some("aliquot-extender"));
    let mount = scheduler().volume_mounts.unwrap().into_iter().find(|mount| mount.name == "extender").unwrap();
    assert_eq!(mount.read_only, Some(true));
    for (name, file) in
        [("extender-certificate", "tls.crt"), ("extender-key", "tls.key"), ("extender-client-authority", "ca.crt")]
    {
        assert_eq!(argument(name), format!("{}/{file}", mount.mount_path));
    }
}

#[test]
fn all_resources_of_ours_are_asked_about_and_counted_once() {
    let extender = configuration().extenders.remove(0);
    assert_eq!(
        [extender.filter_verb, extender.prioritize_verb, extender.preempt_verb, extender.bind_verb],
        ["filter", "prioritize", "preempt", "bind"].map(String::from)
    );
    assert!(!extender.ignorable, "pods must not get devices that nobody counts");
    let seconds: u64 = extender.http_timeout.strip_suffix('s').unwrap().parse().unwrap();
    assert!(Duration::from_secs(seconds) > Duration::from_secs(20), "a binding may take 20 s");
    assert!(extender.managed_resources.iter().all(|of| of.ignored_by_scheduler));
    let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
    let mut named: Vec<&str> = extender.managed_resources.iter().map(|of| of.name.as_str()).collect();
    let mut ours: Vec<&str> = Dialect::Own.advertised(&facts).into_iter().map(|of| of.resource).collect();
    named.sort_unstable();
    ours.sort_unstable();
    assert_eq!(named, ours);
}
