//! `aliquot nodes`: this node's devices, the parts of them that are given to slices, and the free rest.

use std::path::Path;

use aliquot_proto::node::v1::{Device, DeviceHealth, GetNodeRequest, Node, SharingMode};

use crate::args::NodesArgs;
use crate::client;
use crate::error::Result;
use crate::output::{Colour, Look};
use crate::quantity::bytes_human;
use crate::table::{Align, Cell, Table, printable};
use crate::{json, output};

/// Prints the node's devices.
pub(crate) async fn nodes(socket: Option<&Path>, args: &NodesArgs) -> Result<()> {
    let mut client = client::connect_to_running(socket).await?;
    let node = client.get_node(GetNodeRequest {}).await?.into_inner();
    if args.json {
        return output::print_json(&json::node(&node));
    }
    output::print(&text(&node, Look::of_stdout()))
}

fn text(node: &Node, look: Look) -> String {
    let driver = match (node.driver_version.as_str(), node.cuda_version.as_str()) {
        ("", _) => "no driver".to_owned(),
        (driver, "") => format!("driver {driver}"),
        (driver, cuda) => format!("driver {driver}, CUDA {cuda}"),
    };
    let heading = format!("{}: {driver}, aliquot-manager {}\n", printable(&node.name), node.manager_version);
    if node.devices.is_empty() {
        return format!("{heading}No GPU that the manager can see; aliquot doctor says why.\n");
    }
    let mut table = Table::new([
        ("DEVICE", Align::Left),
        ("MODEL", Align::Left),
        ("CORE GIVEN", Align::Right),
        ("FREE", Align::Right),
        ("MEMORY", Align::Right),
        ("GIVEN", Align::Right),
        ("FREE", Align::Right),
        ("SLICES", Align::Right),
        ("HEALTH", Align::Left),
    ]);
    for device in &node.devices {
        // No part of a partitioned GPU itself is given out, only parts of its instances.
        let given = |text: String| if device.mig_enabled { "-".to_owned() } else { text };
        table.row([
            format!("{} {}", device.index, device.uuid).into(),
            device.model.clone().into(),
            given(format!("{} %", device.core_requested_percent)).into(),
            given(format!("{} %", 100u32.saturating_sub(device.core_requested_percent))).into(),
            bytes_human(device.memory_bytes).into(),
            given(bytes_human(device.memory_given_bytes)).into(),
            given(bytes_human(device.memory_bytes.saturating_sub(device.memory_given_bytes))).into(),
            given(device.slices.len().to_string()).into(),
            Cell::coloured(health(device), health_colour(device)),
        ]);
    }
    heading + &table.render_as(look)
}

fn health_colour(device: &Device) -> Option<Colour> {
    match device.health() {
        DeviceHealth::Healthy => Some(Colour::Green),
        DeviceHealth::Unhealthy => Some(Colour::Red),
        DeviceHealth::Unspecified => None,
    }
}

fn health(device: &Device) -> String {
    match (device.health(), device.health_reason.as_str()) {
        (DeviceHealth::Healthy, _) => healthy(device).to_owned(),
        (DeviceHealth::Unhealthy, "") => "unhealthy".to_owned(),
        (DeviceHealth::Unhealthy, reason) => format!("unhealthy: {reason}"),
        (DeviceHealth::Unspecified, _) => "unknown".to_owned(),
    }
}

/// How a healthy device is used, if that is unusual.
fn healthy(device: &Device) -> &'static str {
    if device.mig_enabled {
        "healthy, partitioned by MIG"
    } else if device.sharing() == SharingMode::Mps {
        "healthy, shared by MPS"
    } else if device.has_mps_server {
        "healthy, beside an MPS server"
    } else {
        "healthy"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_and_free_amounts_are_shown() {
        let device = Device {
            uuid: "GPU-a".to_owned(),
            model: "NVIDIA H100".to_owned(),
            memory_bytes: 80 << 30,
            health: DeviceHealth::Unhealthy.into(),
            health_reason: "XID 79".to_owned(),
            core_requested_percent: 30,
            memory_given_bytes: 4 << 30,
            slices: vec!["train".to_owned()],
            ..Device::default()
        };
        let node = Node {
            name: "gpu-1".to_owned(),
            manager_version: "0.1.0".to_owned(),
            driver_version: "580.65.06".to_owned(),
            cuda_version: "13.0".to_owned(),
            devices: vec![device],
            ..Node::default()
        };
        assert_eq!(
            text(&node, Look::PLAIN),
            "gpu-1: driver 580.65.06, CUDA 13.0, aliquot-manager 0.1.0\n\
             DEVICE   MODEL        CORE GIVEN  FREE  MEMORY  GIVEN    FREE  SLICES  HEALTH\n\
             0 GPU-a  NVIDIA H100        30 %  70 %  80 GiB  4 GiB  76 GiB       1  unhealthy: XID 79\n"
        );
        assert!(text(&Node::default(), Look::PLAIN).contains("aliquot doctor"));
    }

    #[test]
    fn a_partitioned_gpu_has_nothing_free() {
        let device = Device {
            uuid: "GPU-a".to_owned(),
            model: "H100".to_owned(),
            memory_bytes: 80 << 30,
            mig_enabled: true,
            health: DeviceHealth::Healthy.into(),
            ..Device::default()
        };
        let text = text(&Node { devices: vec![device], ..Node::default() }, Look::PLAIN);
        let row: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(row.join(" "), "0 GPU-a H100 - - 80 GiB - - - healthy, partitioned by MIG");
    }

    #[test]
    fn notes_about_a_healthy_device_are_shown() {
        let healthy = || Device { health: DeviceHealth::Healthy.into(), ..Device::default() };
        let mps = SharingMode::Mps.into();
        for (device, expected) in [
            (healthy(), "healthy"),
            (Device { mig_enabled: true, ..healthy() }, "healthy, partitioned by MIG"),
            (Device { sharing: mps, has_mps_server: true, ..healthy() }, "healthy, shared by MPS"),
            (Device { has_mps_server: true, ..healthy() }, "healthy, beside an MPS server"),
        ] {
            assert_eq!(health(&device), expected);
        }
    }
}
