//! How long a decision takes on large clusters: the nodes of a trace many times over, filled to a part of their
//! devices, then one task leaves and another one comes, again and again.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::trace::{Task, read_nodes, read_tasks};
use aliquot_scheduler_core::placement::{Engine, Mix, Policy};
use aliquot_scheduler_core::{Claim, ClaimId, Cluster, Event, NodeSpec, Outcome};
use anyhow::{Context, Result, bail};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// The nodes.
    #[arg(long)]
    nodes: PathBuf,
    /// The tasks; drawn from at random.
    #[arg(long)]
    tasks: PathBuf,
    /// How often the nodes are there.
    #[arg(long, value_delimiter = ',', default_value = "1,8,82")]
    copies: Vec<usize>,
    /// Devices in use, in percent.
    #[arg(long, default_value_t = 80)]
    load: u64,
    /// Decisions to time.
    #[arg(long, default_value_t = 200_000)]
    decisions: usize,
    /// The policy.
    #[arg(long, value_enum, default_value_t)]
    policy: PolicyName,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (nodes, tasks) = (read_nodes(&args.nodes)?, read_tasks(&args.tasks)?);
    let mix = Mix::of(tasks.iter().map(|task| &task.request));
    for copies in &args.copies {
        measure(&args, *copies, &nodes, &tasks, args.policy.make(&mix, 0))?;
    }
    Ok(())
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((u128::from(self.0) * bound as u128) >> 64).unwrap_or(0)
    }
}

fn measure(args: &Args, copies: usize, nodes: &[NodeSpec], tasks: &[Task], policy: impl Policy) -> Result<()> {
    let resident_before = resident_kib()?;
    let mut cluster = Cluster::new();
    for copy in 0..copies {
        for node in nodes {
            cluster.apply(Event::NodeAdded(NodeSpec { name: format!("{}-{copy}", node.name), ..node.clone() }))?;
        }
    }
    let resident_nodes = resident_kib()?;
    let capacity: u64 = cluster.nodes().map(|(_, node)| node.devices().len() as u64 * 1000).sum();
    let mut engine = Engine::new(policy);
    let mut chance = Chance(7);
    let (mut running, mut used): (Vec<ClaimId>, u64) = (Vec::new(), 0);
    let (mut times, mut steady) = (Vec::new(), false);
    let filling = Instant::now();
    let mut filled_in = Duration::ZERO;
    while times.len() < args.decisions {
        let full = used * 100 >= capacity * args.load;
        if full && !steady {
            steady = true;
            filled_in = filling.elapsed();
        }
        if full {
            let claim = running.swap_remove(chance.below(running.len()));
            used -= cluster.claim(claim).map_or(0, |claim| claim.request.devices.total_core());
            cluster.apply(Event::ClaimRemoved(claim))?;
            continue;
        }
        let task = &tasks[chance.below(tasks.len())];
        let Outcome::Claim(claim) =
            cluster.apply(Event::ClaimAdded(Claim { request: task.request.clone(), ..Claim::default() }))?
        else {
            bail!("a claim got no id")
        };
        let class = cluster.class_of(claim).context("a claim has no class")?;
        let began = Instant::now();
        let placement = engine.place(&cluster, class);
        if steady {
            times.push(began.elapsed());
        }
        match placement {
            Some(allocation) => {
                cluster.apply(Event::ClaimPlaced(claim, allocation))?;
                running.push(claim);
                used += task.request.devices.total_core();
            }
            None => {
                cluster.apply(Event::ClaimRemoved(claim))?;
            }
        }
    }
    let resident_after = resident_kib()?;
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / u32::try_from(times.len())?;
    let at = |thousandths: usize| times[(times.len() * thousandths / 1000).min(times.len() - 1)];
    println!(
        "{:?}: {} nodes, {} claims, filled in {filled_in:.1?}: decision mean {mean:.1?} ({:.0}/s), p50 {:.1?}, \
         p99 {:.1?}, p99.9 {:.1?}, max {:.1?}; {} KiB for nodes, {} KiB in all",
        args.policy,
        copies * nodes.len(),
        running.len(),
        1.0 / mean.as_secs_f64(),
        at(500),
        at(990),
        at(999),
        at(1000),
        resident_nodes - resident_before,
        resident_after - resident_before,
    );
    Ok(())
}

/// Memory of this process that is in use.
fn resident_kib() -> Result<i64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc/self/status")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
