//! A cluster without Kubernetes: a scheduler, node managers that have joined it, and jobs on simulated GPUs.

mod dev;
mod exec;
mod failover;
mod faults;
mod foreign;
mod images;
mod jobs;
mod ports;
mod secrets;
mod strangers;
mod users;
mod versions;

use aliquot_harness::{Jobs, Node, Scheduler, SimulatedGpu, wait};
use aliquot_proto::scheduler::v1::{Job, JobSpec, JobState, NodeState};

/// A scheduler, with nodes of two devices each.
struct Cluster {
    // The fields are dropped in this order: nodes end their jobs before their devices are removed.
    nodes: Vec<Node>,
    _gpus: Vec<SimulatedGpu>,
    scheduler: Scheduler,
}

impl Cluster {
    /// Starts a scheduler with the configuration keys `settings` and this number of nodes, and waits until all are up.
    fn start(nodes: usize, settings: &str) -> Cluster {
        let scheduler = Scheduler::start(settings);
        let gpus: Vec<SimulatedGpu> = (0..nodes)
            .map(|_| SimulatedGpu::with("[[device]]\nmemory = '80GiB'\n[[device]]\nmemory = '80GiB'\n"))
            .collect();
        let joined =
            gpus.iter().enumerate().map(|(number, gpu)| Node::with(gpu, &scheduler.joins(&format!("node-{number}"))));
        let cluster = Cluster { nodes: joined.collect(), _gpus: gpus, scheduler };
        cluster.wait_for_nodes(nodes);
        cluster
    }

    fn client(&self) -> Jobs {
        self.scheduler.client()
    }

    fn wait_for_nodes(&self, count: usize) {
        wait::until_true("the nodes are up", || {
            let nodes = self.client().nodes().unwrap_or_default();
            nodes.iter().filter(|node| node.state() == NodeState::Up).count() == count
        });
    }

    fn submit(&self, spec: JobSpec) -> u64 {
        let submitted = self.client().submit(spec);
        submitted.unwrap_or_else(|status| panic!("the job is refused: {}", status.message())).id
    }

    fn wait_for(&self, id: u64, state: JobState) -> Job {
        let mut last = None;
        wait::until(&format!("job {id} is {state:?}"), || {
            let job = self.client().job(id).ok()?;
            if last.as_ref() != Some(&job) {
                println!("{job:?}");
                last = Some(job.clone());
            }
            (job.state() == state).then_some(job)
        })
    }
}

/// A job that runs a shell script.
fn shell(script: &str) -> JobSpec {
    JobSpec { command: ["/bin/sh", "-c", script].map(str::to_owned).into(), work_dir: "/".into(), ..JobSpec::default() }
}

/// A job that runs until it is stopped.
fn endless() -> JobSpec {
    shell("exec sleep 1000000")
}
