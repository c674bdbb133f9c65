//! Everything once more on a real cluster: a real API server, scheduler, kubelet and container runtime. Ignored
//! unless asked for:
//!
//! ```sh
//! KUBECONFIG=... ALIQUOT_TEST_IMPORT='kind load image-archive' \
//!     cargo test -p aliquot-deployment --test real_cluster -- --ignored --nocapture
//! ```
//!
//! | variable | |
//! | --- | --- |
//! | `KUBECONFIG` | the cluster, of Kubernetes 1.34 or later, and an administrator's rights in it; `kubectl` is used, of 1.36 or later. Before 1.36 some features of claims are off by default; a step that needs one says so and is not run |
//! | `ALIQUOT_TEST_IMPORT` | a command that brings an image's archive, its last argument, to the cluster's nodes: `ctr -n k8s.io images import` for containerd, `podman load --input` for CRI-O |
//! | `ALIQUOT_TEST_GPU` | `simulated` where the cluster's only node is this machine and has no GPU |
//! | `ALIQUOT_TEST_PODS` | how many pods start at once (50; by the device plugin 30); nodes take 110 by default. With claims on 1.34: 30, because kube-scheduler gives parts of the first device only |
//! | `ALIQUOT_TEST_ROUNDS` | how often managers are killed and replaced while pods arrive (2); 10 of them are more than 200 pods |
//! | `ALIQUOT_TEST_KUBE_SCHEDULER` | a command that runs kube-scheduler with the arguments that follow, where it reaches the cluster's services |
//! | `ALIQUOT_TEST_OLDER_SCHEDULER` | the program `aliquot-scheduler` of an older version, from which the scheduler is upgraded; otherwise it is replaced by the same version |
//! | `ALIQUOT_TEST_RAY_DEFINITION` | a file with KubeRay's CustomResourceDefinition of RayClusters; otherwise one that takes anything stands in for it |
//! | `ALIQUOT_TEST_RESTART` | a command that restarts `kubelet` or `runtime`, its last argument, on each node. What it starts must have left its process group when it ends |
//!
//! The manager stays deployed; `kubectl delete -k deploy/kubernetes/dra`, or `device-plugin`, removes it. The scheduler
//! is removed; `kubectl delete -k deploy/kubernetes/scheduler` removes one that a failed test has left.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use aliquot_harness::{EXACT_MEMORY, HostProgram, Image, PARTITIONABLE_GPU, SimulatedGpu, wait};

#[path = "real_cluster/claims.rs"]
mod claims;
#[path = "real_cluster/class_resources.rs"]
mod class_resources;
#[path = "real_cluster/cluster.rs"]
mod cluster;
#[path = "real_cluster/containers_of_a_pod.rs"]
mod containers_of_a_pod;
#[path = "real_cluster/faults.rs"]
mod faults;
#[path = "real_cluster/figures.rs"]
mod figures;
#[path = "real_cluster/groups.rs"]
mod groups;
#[path = "real_cluster/holder.rs"]
mod holder;
#[path = "real_cluster/instances.rs"]
mod instances;
#[path = "real_cluster/interruptions.rs"]
mod interruptions;
#[path = "real_cluster/kube_scheduler.rs"]
mod kube_scheduler;
#[path = "real_cluster/manager.rs"]
mod manager;
#[path = "real_cluster/many_pods.rs"]
mod many_pods;
#[path = "real_cluster/objects.rs"]
mod objects;
#[path = "real_cluster/placed.rs"]
mod placed;
#[path = "real_cluster/queues.rs"]
mod queues;
#[path = "real_cluster/ray.rs"]
mod ray;
#[path = "real_cluster/refusals.rs"]
mod refusals;
#[path = "real_cluster/replacements.rs"]
mod replacements;
#[path = "real_cluster/reports.rs"]
mod reports;
#[path = "real_cluster/restricted.rs"]
mod restricted;
#[path = "real_cluster/reviewed.rs"]
mod reviewed;
#[path = "real_cluster/scheduler.rs"]
mod scheduler;
#[path = "real_cluster/suspended.rs"]
mod suspended;
#[path = "real_cluster/units.rs"]
mod units;
#[path = "real_cluster/upgraded.rs"]
mod upgraded;
#[path = "real_cluster/usage.rs"]
mod usage;
#[path = "real_cluster/whole.rs"]
mod whole;

use cluster::{Cluster, Namespace};
use manager::{Deployment, Manager, Mode};

/// The longest wait. Real clusters are slower than the harness expects elsewhere.
const PATIENCE: Duration = Duration::from_secs(180);

/// The devices of the simulated machine, unless a test wants others.
const TWO_GPUS: &str = "[[device]]\nmemory = '8 GiB'\n[[device]]\nmemory = '8 GiB'\n";

/// Lets one test run at a time: the cluster has one set of managers, in one mode.
static ONE: Mutex<()> = Mutex::new(());

const CLAIMS: Deployment = Deployment { mode: Mode::Claims, settings: "", machine: TWO_GPUS };
const UNITS: Deployment = Deployment { mode: Mode::Units, settings: "", machine: TWO_GPUS };
const INSTANCES: Deployment =
    Deployment { mode: Mode::Claims, settings: "mig = \"dynamic\"\n", machine: PARTITIONABLE_GPU };

/// A part of a test, which prints what was right.
type Step<'a> = fn(&Tests<'a>);

struct Tests<'a> {
    cluster: &'a Cluster,
    mode: Mode,
    manager: &'a Manager<'a>,
    namespace: &'a Namespace<'a>,
    image: &'a str,
    devices: usize,
    /// The simulated GPU, if there is one.
    gpu: Option<&'a SimulatedGpu>,
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn pods_of_a_real_cluster_run_in_the_slices_of_their_claims() {
    on_the_cluster(CLAIMS, |tests| {
        if !tests.claims_are_for_parts() {
            tests.claims_get_whole_devices(None);
            return;
        }
        tests.at_once(&[
            Tests::a_pod_of_a_template_has_its_part,
            Tests::two_pods_share_a_claim,
            Tests::a_container_has_several_devices,
            Tests::the_first_that_fits_is_taken,
            Tests::a_manager_changes_only_its_own_node_s_resource_slices,
        ]);
        tests.at_once(&[
            Tests::bad_claims_are_refused_with_their_reasons,
            Tests::nothing_is_broken_in_a_manager_s_pod,
            Tests::what_pods_use_is_told_with_their_names,
            Tests::a_pod_without_any_rights_has_its_part_within_a_quota,
            Tests::a_container_that_is_restarted_is_in_its_slice_again,
        ]);
        let upgrade = tests.manager.begin_to_import_an_upgrade();
        tests.devices_that_go_bad_are_given_to_nobody_until_they_are_well();
        tests.pods_that_start_at_once_have_each_its_own(50);
        tests.pods_wait_for_a_manager_that_is_away();
        tests.no_pod_fails_while_managers_are_killed_and_replaced();
        tests.restarts_in_any_order_disturb_nobody();
        tests.an_upgrade_disturbs_nobody(upgrade);
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn pods_of_a_real_cluster_run_in_the_slices_of_their_units() {
    on_the_cluster(UNITS, |tests| {
        tests.at_once(&[Tests::a_pod_with_units_has_its_part, Tests::bad_units_are_refused_with_their_reasons]);
        tests.containers_of_a_pod_have_each_its_own_slice();
        tests.at_once(&[
            Tests::nothing_is_broken_in_a_manager_s_pod,
            Tests::what_pods_use_is_told_with_their_names,
            Tests::a_pod_without_any_rights_has_its_part_within_a_quota,
            Tests::a_container_that_is_restarted_is_in_its_slice_again,
        ]);
        let upgrade = tests.manager.begin_to_import_an_upgrade();
        tests.devices_that_go_bad_are_given_to_nobody_until_they_are_well();
        tests.pods_that_start_at_once_have_each_its_own(30);
        tests.no_pod_fails_while_managers_are_killed_and_replaced();
        tests.restarts_in_any_order_disturb_nobody();
        tests.an_upgrade_disturbs_nobody(upgrade);
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn pods_of_a_real_cluster_are_placed_by_the_scheduler() {
    on_the_cluster(UNITS, |tests| {
        let _scheduler = tests.deploy_scheduler(&["webhook"]);
        tests.the_webhook_refuses_and_fills_in();
        tests.the_leader_hears_what_pods_use();
        tests.pods_are_placed();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn claims_of_a_real_cluster_are_allocated_by_the_scheduler() {
    on_the_cluster(CLAIMS, |tests| {
        let _scheduler = tests.deploy_scheduler(&[]);
        if !tests.claims_are_for_parts() {
            tests.claims_get_whole_devices(Some("aliquot"));
            return;
        }
        tests.a_class_gives_devices_by_their_number();
        tests.pods_are_placed();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn pods_of_a_real_cluster_s_groups_share_their_claims() {
    on_the_cluster(CLAIMS, |tests| {
        let _scheduler = tests.deploy_scheduler(&[]);
        tests.pods_of_a_group_have_what_they_name_of_its_claim();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn nothing_of_a_real_cluster_is_lost_when_the_scheduler_changes() {
    on_the_cluster(UNITS, |tests| {
        let _scheduler = tests.deploy_scheduler(&[]);
        tests.a_lease_that_is_deleted_changes_nothing();
        tests.an_upgrade_of_the_scheduler_loses_nothing();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn ray_clusters_of_a_real_cluster_start_as_a_whole() {
    on_the_cluster(UNITS, |tests| {
        let _scheduler = tests.deploy_scheduler(&[]);
        tests.ray_clusters_start_as_a_whole();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn workloads_of_a_real_cluster_are_suspended_as_a_whole() {
    on_the_cluster(UNITS, |tests| {
        let _scheduler = tests.deploy_scheduler(&[]);
        tests.workloads_are_suspended_as_a_whole();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn kube_scheduler_of_a_real_cluster_asks_about_devices() {
    let Some(command) = kube_scheduler::command() else { return };
    on_the_cluster(UNITS, |tests| {
        let certificates = tests.extender_certificates();
        let _scheduler = tests.deploy_scheduler(&["extender"]);
        tests.kube_scheduler_asks_about_devices(&command, certificates.path());
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn gpus_of_a_real_cluster_are_divided_as_claims_want_it() {
    on_the_cluster(INSTANCES, |tests| {
        tests.an_instance_is_made_for_a_claim_and_destroyed_with_it();
    });
}

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn figures_of_a_real_cluster() {
    on_the_cluster(CLAIMS, |tests| {
        tests.how_long_pods_take_to_start();
        tests.pods_that_start_at_once_have_each_its_own(100);
        tests.how_long_claims_take_to_be_prepared();
    });
}

impl<'a> Tests<'a> {
    /// Does these steps at the same time: most of each is waiting, and their pods have room beside each other.
    fn at_once(&self, steps: &[Step<'a>]) {
        thread::scope(|scope| steps.iter().for_each(|step| _ = scope.spawn(|| step(self))));
    }
}

/// Deploys the managers, does `steps`, and makes sure that nothing of these is left.
fn on_the_cluster(deployment: Deployment, steps: impl FnOnce(&Tests<'_>)) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cluster = Cluster::of_kubeconfig();
    let mode = deployment.mode;
    println!("cluster: {}, managers as in {}", cluster.version(), mode.directory());
    cluster.nodes().iter().for_each(|node| println!("node: {node}"));
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}{}", deployment.machine));
    let simulated = std::env::var("ALIQUOT_TEST_GPU").is_ok_and(|gpu| gpu == "simulated");
    let programs = ["devices", "exact", "hold"].map(|name| HostProgram::linked(&gpu, name));
    let image = Image::with(&programs.each_ref());
    let gpu = simulated.then_some(&gpu);
    let manager = thread::scope(|scope| {
        scope.spawn(|| cluster.import(&image));
        Manager::deploy(&cluster, &deployment, gpu)
    });
    let devices = manager.devices();
    println!("published: {devices} devices");
    let namespace = cluster.namespace("aliquot-test");
    steps(&Tests {
        cluster: &cluster,
        mode,
        manager: &manager,
        namespace: &namespace,
        image: image.reference(),
        devices,
        gpu,
    });
    drop(namespace);
    wait::until_true("all slices are gone", || manager.slices().is_empty());
    println!("ok: nothing is left");
}
