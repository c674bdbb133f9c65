//! `aliquot nodes` if a scheduler can be reached: the nodes of the cluster.

use std::path::Path;

use aliquot_proto::scheduler::v1::{ListNodesRequest, Node, NodeState, RemoveNodeRequest};
use serde_json::json;

use super::{age_human, connect, connect_to_running, failed, json, now_unix_ms};
use crate::args::{NodeRemoveArgs, NodesArgs, NodesCommand};
use crate::client::{self, Absent};
use crate::error::{Failure, Result, exit};
use crate::output::{self, Colour, Look};
use crate::quantity::{bytes_human, thousandths_human};
use crate::server::SCHEDULER;
use crate::table::{Align, Cell, Table};

/// The columns that a narrow terminal does not show, the most dispensable first.
const OPTIONAL: [&str; 3] = ["VERSION", "INSTANCES", "DEVICES"];

/// Prints the cluster's nodes, or this node if there is no cluster, or removes a node from the cluster. If the user
/// names a node manager and no scheduler, this node is meant.
pub(crate) async fn nodes(manager: Option<&Path>, scheduler: Option<&Path>, args: &NodesArgs) -> Result<()> {
    if let Some(NodesCommand::Remove(args)) = &args.command {
        return remove(scheduler, args).await;
    }
    if args.local || (manager.is_some() && scheduler.is_none()) {
        return crate::nodes::nodes(manager, args).await;
    }
    let socket = match client::find_server(&SCHEDULER, scheduler) {
        Ok(socket) => socket,
        Err(Absent::NotRunning(_)) if scheduler.is_none() => return crate::nodes::nodes(manager, args).await,
        Err(absent @ Absent::Unreachable(..)) if scheduler.is_none() => {
            let failure = absent.failure(&SCHEDULER);
            let remedy = failure.remedy().unwrap_or_default();
            let hint = format!("{remedy}; for this node alone: aliquot nodes --local");
            return Err(failure.hint(hint));
        }
        Err(absent) => return Err(absent.failure(&SCHEDULER)),
    };
    let nodes = connect(&socket).await?.list_nodes(ListNodesRequest {}).await.map_err(failed)?.into_inner().nodes;
    if args.json {
        return output::print_json(&json!({ "nodes": nodes.iter().map(json::node).collect::<Vec<_>>() }));
    }
    output::print(&text(&nodes, Look::of_stdout(), now_unix_ms()))
}

async fn remove(socket: Option<&Path>, args: &NodeRemoveArgs) -> Result<()> {
    let name = args.name.as_str();
    if !args.nothing_runs_there {
        return Err(Failure::new(format!(
            "the jobs of node {name:?} start on other nodes at once if it is removed; jobs that still run on it would run twice"
        ))
        .hint(format!("switch the node off, then: aliquot nodes remove {name} --nothing-runs-there"))
        .exit(exit::USAGE));
    }
    let request = RemoveNodeRequest { name: name.to_owned() };
    connect_to_running(socket).await?.remove_node(request).await.map_err(failed)?;
    if args.json {
        return output::print_json(&json!({ "removed": name }));
    }
    Ok(())
}

fn text(nodes: &[Node], look: Look, now_unix_ms: u64) -> String {
    if nodes.is_empty() {
        return "No nodes. Let one join: aliquot token\n".to_owned();
    }
    let mut table = Table::new([
        ("NODE", Align::Left),
        ("STATE", Align::Left),
        ("DEVICES", Align::Left),
        ("CORE GIVEN", Align::Right),
        ("OF", Align::Right),
        ("MEMORY GIVEN", Align::Right),
        ("OF", Align::Right),
        ("INSTANCES", Align::Right),
        ("HEARD", Align::Right),
        ("VERSION", Align::Left),
        ("PROBLEM", Align::Left),
    ]);
    for node in nodes {
        let healthy = || node.devices.iter().filter(|device| device.healthy);
        let sum = |amount: fn(&aliquot_proto::scheduler::v1::NodeDevice) -> u64| {
            node.devices.iter().fold(0u64, |sum, device| sum.saturating_add(amount(device)))
        };
        table.row([
            node.name.clone().into(),
            Cell::coloured(state_word(node.state()), state_colour(node.state())),
            devices(node).into(),
            thousandths_human(sum(|device| device.core_given_millis.into())).into(),
            healthy().count().to_string().into(),
            bytes_human(sum(|device| device.memory_given_bytes)).into(),
            bytes_human(healthy().fold(0u64, |sum, device| sum.saturating_add(device.memory_bytes))).into(),
            node.instances.to_string().into(),
            heard(node, now_unix_ms).into(),
            node.version.clone().into(),
            Cell::coloured(problem(node), Colour::Red),
        ]);
    }
    table.render_narrowed(look, &OPTIONAL)
}

pub(super) fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Up => "up",
        NodeState::Silent => "silent",
        NodeState::Cordoned => "cordoned",
        NodeState::Unspecified => "unknown",
    }
}

fn state_colour(state: NodeState) -> Option<Colour> {
    match state {
        NodeState::Up => Some(Colour::Green),
        NodeState::Silent => Some(Colour::Red),
        NodeState::Cordoned => Some(Colour::Yellow),
        NodeState::Unspecified => None,
    }
}

/// The devices by model: `4 × NVIDIA H100`.
fn devices(node: &Node) -> String {
    let mut models: Vec<(&str, usize)> = Vec::new();
    for device in &node.devices {
        match models.iter_mut().find(|(model, _)| *model == device.model) {
            Some((_, count)) => *count += 1,
            None => models.push((&device.model, 1)),
        }
    }
    let models: Vec<String> = models.iter().map(|(model, count)| format!("{count} × {model}")).collect();
    if models.is_empty() { "-".to_owned() } else { models.join(", ") }
}

fn heard(node: &Node, now_unix_ms: u64) -> String {
    match node.heard_unix_ms {
        0 => "-".to_owned(),
        heard => format!("{} ago", age_human(heard, now_unix_ms)),
    }
}

fn problem(node: &Node) -> String {
    let ill = node.devices.iter().filter(|device| !device.healthy).count();
    let ill = (ill > 0).then(|| format!("unhealthy devices: {ill}"));
    let problem = Some(node.problem.clone()).filter(|problem| !problem.is_empty());
    [problem, ill].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use aliquot_proto::scheduler::v1::NodeDevice;

    use super::*;

    #[test]
    fn nodes_are_a_table() {
        let device = |model: &str, healthy| NodeDevice {
            model: model.to_owned(),
            memory_bytes: 80 << 30,
            healthy,
            core_given_millis: 300,
            memory_given_bytes: 8 << 30,
            ..NodeDevice::default()
        };
        let up = Node {
            name: "gpu-1".to_owned(),
            state: NodeState::Up.into(),
            version: "0.1.0".to_owned(),
            devices: vec![device("NVIDIA H100", true), device("NVIDIA H100", true), device("A\u{7}2", false)],
            instances: 3,
            heard_unix_ms: 9_000,
            ..Node::default()
        };
        let silent = Node {
            name: "gpu-2".to_owned(),
            state: NodeState::Silent.into(),
            problem: "its certificate has expired".to_owned(),
            ..Node::default()
        };
        assert_eq!(
            text(&[up, silent], Look::PLAIN, 11_000),
            "NODE   STATE   DEVICES                   CORE GIVEN  OF  MEMORY GIVEN       OF  INSTANCES   HEARD  VERSION  PROBLEM\n\
             gpu-1  up      2 × NVIDIA H100, 1 × A?2         0.9   2        24 GiB  160 GiB          3  2s ago  0.1.0    unhealthy devices: 1\n\
             gpu-2  silent  -                                  0   0           0 B      0 B          0       -           its certificate has expired\n"
        );
        assert!(text(&[], Look::PLAIN, 0).contains("aliquot token"));
    }
}
