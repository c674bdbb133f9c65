//! The devices that NVLink connects, as the manager reports them.

use aliquot_harness::{Node, SimulatedGpu};

/// The indices of the devices that each device reaches by NVLink.
fn peers(configuration: &str) -> Vec<Vec<usize>> {
    let gpu = SimulatedGpu::with(configuration);
    let node = Node::start(&gpu);
    let devices = node.client().node().unwrap().devices;
    let index = |uuid: &String| devices.iter().position(|device| device.uuid == *uuid).unwrap();
    devices.iter().map(|device| device.nvlink_peers.iter().map(index).collect()).collect()
}

#[test]
fn links_from_device_to_device_are_seen() {
    let found = peers("[[device]]\nnvlink = [2]\n[[device]]\n[[device]]\nnvlink = [0]\n");
    assert_eq!(found, [vec![2], vec![], vec![0]]);
}

/// The far ends of such links are the switch, which is no device.
#[test]
fn devices_behind_a_switch_reach_one_another() {
    let found = peers("[[device]]\nnvswitch = true\n[[device]]\nnvswitch = true\n[[device]]\n");
    assert_eq!(found, [vec![1], vec![0], vec![]]);
}
