//! What managers report, as replicas take it: managers that are played here, by the true contract.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use aliquot_proto::reports::v1::reports_client::ReportsClient;
use aliquot_proto::reports::v1::{AUDIENCE, Consumer, Device, JoinRequest, NodeReport, Part, Slice, Taken};
use aliquot_test_api_server::{CONFIG_MAPS, SECRETS};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status, Streaming};

use crate::kit::{Cluster, Extras, Scheduler};
use crate::kubectl::json_of;
use crate::rights::{Right, allowed, used};

/// The Service, the Secret and the `ConfigMap`.
const NAME: &str = "aliquot-scheduler-reports";
const MANAGER: &str = "system:serviceaccount:aliquot-system:aliquot-manager";

/// A cluster with a node `n`, and managers' tokens: the token `of-n` is that of the manager on `n`, and so on.
pub(crate) fn cluster() -> Cluster {
    let cluster = Cluster::with_faults();
    cluster.node("n", 1);
    for node in ["n", "m"] {
        cluster.server().know_token(&format!("of-{node}"), AUDIENCE, MANAGER, node);
    }
    cluster.server().know_token("of-others", AUDIENCE, "system:serviceaccount:default:default", "n");
    cluster.server().know_token("for-the-api", "https://kubernetes.default.svc", MANAGER, "n");
    cluster
}

pub(crate) fn replica(cluster: &mut Cluster) -> Scheduler {
    cluster.scheduler_with(Extras { reports: true, ..Extras::default() })
}

/// A replica that leads.
fn leader(cluster: &mut Cluster) -> Scheduler {
    let leader = replica(cluster);
    cluster.wait_until("the leader leads", |_| leader.metric("leader") == Some(1.0));
    leader
}

/// What comes of `attempt` when it succeeds. A replica that has lost its lease on a slow machine refuses it, and leads
/// again later.
#[track_caller]
fn at_last<T>(cluster: &Cluster, what: &str, attempt: impl FnMut() -> Result<T, Status>) -> T {
    let (attempt, done) = (RefCell::new(attempt), RefCell::new(None));
    cluster.wait_until(what, |_| {
        let outcome = (*attempt.borrow_mut())();
        *done.borrow_mut() = outcome.ok();
        done.borrow().is_some()
    });
    done.into_inner().unwrap()
}

/// A manager on a node.
pub(crate) struct Manager {
    runtime: Runtime,
    authority: String,
    key: KeyPair,
    certificate: Option<String>,
}

/// A call of a manager.
pub(crate) struct Call {
    reports: mpsc::Sender<NodeReport>,
    answers: Streaming<Taken>,
}

impl Manager {
    /// One that trusts whom the cluster's `ConfigMap` names.
    pub(crate) fn new(cluster: &Cluster) -> Manager {
        let bundle = |cluster: &Cluster| {
            let config_maps = cluster.objects.list(&CONFIG_MAPS);
            let ours = config_maps.into_iter().find(|of| of["metadata"]["name"] == NAME);
            ours.and_then(|of| Some(of["data"]["ca.crt"].as_str()?.to_owned()))
        };
        cluster.wait_until("managers know whom to trust", |cluster| bundle(cluster).is_some());
        let (runtime, key) = (Runtime::new().unwrap(), KeyPair::generate().unwrap());
        Manager { runtime, authority: bundle(cluster).unwrap(), key, certificate: None }
    }

    /// One that has a certificate of a replica.
    pub(crate) fn joined(cluster: &Cluster, node: &str, at: SocketAddr) -> Manager {
        let mut manager = Manager::new(cluster);
        at_last(cluster, "the manager is let in", || manager.join(&format!("of-{node}"), node, at));
        manager
    }

    fn connect(&self, to: SocketAddr) -> Result<Channel, String> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .domain_name(format!("{NAME}.aliquot-system.svc"));
        let tls = match &self.certificate {
            Some(certificate) => tls.identity(Identity::from_pem(certificate, self.key.serialize_pem())),
            None => tls,
        };
        let endpoint = Endpoint::from_shared(format!("https://{to}")).unwrap().tls_config(tls).unwrap();
        self.runtime.block_on(endpoint.connect()).map_err(|error| format!("{error:?}"))
    }

    fn join(&mut self, token: &str, node: &str, at: SocketAddr) -> Result<(), Status> {
        let certificate_request = CertificateParams::default().serialize_request(&self.key).unwrap().pem().unwrap();
        let request = JoinRequest { token: token.into(), node: node.into(), certificate_request };
        let mut client = ReportsClient::new(self.connect(at).map_err(Status::unknown)?);
        let answer = self.runtime.block_on(client.join(request))?;
        self.certificate = Some(answer.into_inner().certificate);
        Ok(())
    }

    pub(crate) fn call(&self, to: SocketAddr) -> Result<Call, Status> {
        let mut client = ReportsClient::new(self.connect(to).map_err(Status::unknown)?);
        let (reports, to_send) = mpsc::channel(1);
        let answers = self.runtime.block_on(client.report(ReceiverStream::new(to_send)))?.into_inner();
        Ok(Call { reports, answers })
    }

    pub(crate) fn say(&self, call: &mut Call, report: NodeReport) -> Result<Taken, Status> {
        self.runtime.block_on(async {
            call.reports.send(report).await.map_err(|_| Status::aborted("the call is over"))?;
            call.answers.message().await?.ok_or_else(|| Status::aborted("the call is over"))
        })
    }
}

/// A container that uses so many thousandths of a percent of this device, and 1 GiB of its memory.
pub(crate) fn using(pod: &str, device: &str, core_used_millipercent: u32) -> NodeReport {
    let consumer = Consumer { namespace: "default".into(), pod: pod.into(), container: "main".into() };
    let part =
        Part { device_uuid: device.into(), core_used_millipercent, memory_used_bytes: 1 << 30, ..Part::default() };
    let slice = Slice { id: format!("slice of {pod}"), consumers: vec![consumer], parts: vec![part] };
    NodeReport { slices: vec![slice], ..NodeReport::default() }
}

#[test]
fn top_says_what_managers_report() {
    // A replica that has lost its lease on a slow machine has forgotten what was reported.
    let is_kept = || top_is_as_reported().inspect_err(|lost| println!("{lost}")).is_ok();
    assert!((0..5).any(|_| is_kept()), "the replica never kept its lease");
}

/// Fails if the replica loses its lease.
fn top_is_as_reported() -> Result<(), Status> {
    let mut cluster = cluster();
    let scheduler = replica(&mut cluster);
    cluster.make_pod_of(1, &scheduler);
    cluster.pod("a", 60, json!({}));
    cluster.wait_until_bound(&["a"]);
    let manager = Manager::joined(&cluster, "n", scheduler.reports_address);
    let has_kept_its_lease = || match scheduler.counts(&[]) {
        true => Ok(()),
        false => Err(Status::unavailable("the replica was started anew")),
    };
    let mut call = manager.call(scheduler.reports_address)?;
    assert!(manager.say(&mut call, using("a", "GPU-n-0", 30_000))?.next_ms > 0);
    let top: Value = json_of(&cluster, &["top"]);
    has_kept_its_lease()?;
    let slice = &top["slices"][0];
    assert_eq!((&slice["core_used_thousandths"], &slice["core_thousandths"]), (&json!(300), &json!(600)), "{top}");
    assert_eq!((&slice["memory_used_bytes"], &slice["queue"]), (&json!(1 << 30), &json!("default")), "{top}");
    assert!(slice["report_age_ms"].is_u64() && top["notes"] == json!([]), "{top}");
    // The last call of a manager counts.
    let mut second = manager.call(scheduler.reports_address)?;
    manager.say(&mut second, using("a", "GPU-n-0", 10_000))?;
    let refused = manager.say(&mut call, using("a", "GPU-n-0", 90_000)).unwrap_err();
    let top: Value = json_of(&cluster, &["top"]);
    has_kept_its_lease()?;
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    assert_eq!(top["slices"][0]["core_used_thousandths"], 100, "{top}");
    Ok(())
}

#[test]
fn strangers_and_managers_of_other_nodes_are_refused() {
    let mut cluster = cluster();
    let scheduler = leader(&mut cluster);
    let at = scheduler.reports_address;
    let mut manager = Manager::new(&cluster);
    for (token, node, code, words) in [
        ("", "n", Code::Unauthenticated, "no token"),
        ("made-up", "n", Code::Unauthenticated, "invalid bearer token"),
        ("for-the-api", "n", Code::Unauthenticated, "audiences"),
        ("of-others", "n", Code::PermissionDenied, "system:serviceaccount:default:default"),
        ("of-m", "n", Code::PermissionDenied, "a pod on node \"m\""),
    ] {
        let refused = manager.join(token, node, at).unwrap_err();
        assert!(refused.code() == code && refused.message().contains(words), "{token}: {refused:?}");
    }
    let refused = manager.call(at).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    // A certificate of one's own says nothing.
    let own = CertificateParams::default().self_signed(&manager.key).unwrap().pem();
    manager.certificate = Some(own);
    assert!(manager.call(at).is_err());
    manager.certificate = None;
    at_last(&cluster, "the manager is let in", || manager.join("of-n", "n", at));
    // While the API server does not answer nobody new is let in, and whoever is in reports on.
    at_last(&cluster, "whoever is in reports on", || {
        cluster.server().set_out(false);
        let mut call = manager.call(at)?;
        cluster.server().set_out(true);
        manager.say(&mut call, NodeReport::default())
    });
    let mut late = Manager { certificate: None, ..manager };
    let refused = late.join("of-n", "n", at).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
}

#[test]
fn a_device_that_is_reported_ill_gets_no_pod_until_it_is_well() {
    let mut cluster = cluster();
    let scheduler = leader(&mut cluster);
    cluster.make_pod_of(1, &scheduler);
    let manager = Manager::joined(&cluster, "n", scheduler.reports_address);
    let call = RefCell::new(manager.call(scheduler.reports_address).unwrap());
    let say = |problem: &str| {
        let device = Device { uuid: "GPU-n-0".into(), problem: problem.into(), ..Device::default() };
        let report = NodeReport { devices: vec![device], ..NodeReport::default() };
        manager.say(&mut call.borrow_mut(), report).unwrap();
    };
    say("XID 79");
    cluster.pod("a", 60, json!({}));
    let why = |cluster: &Cluster| cluster.why_waiting("a").unwrap_or_default().1;
    cluster.wait_until("a says why it waits", |cluster| {
        // Otherwise the manager is silent some time.
        say("XID 79");
        why(cluster).contains("device GPU-n-0 of node n gets nothing new: XID 79")
    });
    cluster.wait_until("the same is said of a pod that does not exist", |cluster| {
        say("XID 79");
        let answer: Value = json_of(cluster, &["what-if", "--gpu-core", "60"]);
        answer["reasons"].to_string().contains("device GPU-n-0 of node n gets nothing new: XID 79")
    });
    assert!(cluster.bound().is_empty());
    say("");
    cluster.wait_until_bound(&["a"]);
}

#[test]
fn a_queue_s_device_time_is_counted_as_given_and_as_used() {
    let mut cluster = cluster();
    let scheduler = replica(&mut cluster);
    cluster.pod("a", 60, json!({}));
    cluster.wait_until_bound(&["a"]);
    let manager = Manager::joined(&cluster, "n", scheduler.reports_address);
    let call = RefCell::new(manager.call(scheduler.reports_address).unwrap());
    let used_s = RefCell::new(0);
    let of_default = |what: &str| scheduler.metric(&format!("queue_{what}_gpu_seconds_total{{queue=\"default\"}}"));
    cluster.wait_until("the queue was given a second, and has used one", |_| {
        let mut report = using("a", "GPU-n-0", 30_000);
        report.slices[0].parts[0].core_used_ns = *used_s.borrow() * 1_000_000_000;
        *used_s.borrow_mut() += 1;
        manager.say(&mut call.borrow_mut(), report).unwrap();
        of_default("given") > Some(1.0) && of_default("used") >= Some(1.0)
    });
    assert_eq!(scheduler.metric("nodes_reporting"), Some(1.0));
}

#[test]
fn the_next_leader_takes_reports_by_the_same_certificate() {
    let mut cluster = cluster();
    let leader = leader(&mut cluster);
    let standby = replica(&mut cluster);
    // Any replica lets a manager in.
    let manager = Manager::joined(&cluster, "n", standby.reports_address);
    let refused = manager.call(standby.reports_address).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let mut call = manager.call(leader.reports_address).unwrap();
    manager.say(&mut call, NodeReport::default()).unwrap();
    leader.stop();
    assert!(manager.say(&mut call, NodeReport::default()).is_err());
    cluster.wait_until("the next one leads", |_| standby.metric("leader") == Some(1.0));
    let mut call = manager.call(standby.reports_address).unwrap();
    manager.say(&mut call, NodeReport::default()).unwrap();
}

#[test]
fn reports_need_exactly_the_rights_that_are_given() {
    let mut cluster = cluster();
    let scheduler = replica(&mut cluster);
    Manager::joined(&cluster, "n", scheduler.reports_address);
    let secret = cluster.objects.get(&SECRETS, "aliquot-system", NAME);
    assert!(["ca.crt", "ca.key", "tls.crt", "tls.key"].into_iter().all(|field| secret["data"][field].is_string()));
    let mut allowed_to_reports = allowed("components/reports/rbac.yaml");
    // They are renewed after months.
    for resource in ["secrets", "configmaps"] {
        assert!(allowed_to_reports.remove(&(String::new(), resource.into(), "update".into())), "{resource}");
    }
    // Of ConfigMaps the scheduler has the same rights without reports, but to another one.
    let without = allowed("scheduler/rbac.yaml");
    let beyond = |rights: &BTreeSet<Right>| -> BTreeSet<Right> { rights.difference(&without).cloned().collect() };
    assert_eq!(beyond(&used(&cluster)), beyond(&allowed_to_reports));
}
