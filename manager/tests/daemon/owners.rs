//! Slices that end with their owner process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use aliquot_proto::node::v1 as proto;
use tonic::Code;

use crate::node::{GIB, Node, eventually, part, refused};
use crate::tenant::{Tenant, limits};

fn request(name: &str, owner_pid: u32) -> proto::CreateSliceRequest {
    proto::CreateSliceRequest {
        name: name.into(),
        parts: vec![part(10, GIB)],
        owner_pid,
        ..proto::CreateSliceRequest::default()
    }
}

#[test]
fn a_slice_ends_with_its_owner() {
    let mut node = Node::start();
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    node.create_by(request("mine", std::process::id())).unwrap();
    node.create_by(request("child", child.id())).unwrap();
    node.restart().unwrap();
    assert_eq!(node.list().len(), 2);
    child.kill().unwrap();
    eventually("the slice is gone", || (node.list().len() == 1).then_some(()));
    assert_eq!(node.list()[0].name, "mine");
    child.wait().unwrap();
}

#[test]
fn an_owner_that_ended_while_no_manager_ran_takes_its_slice_along() {
    let mut node = Node::start();
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    node.create_by(request("child", child.id())).unwrap();
    node.stop();
    child.kill().unwrap();
    child.wait().unwrap();
    node.restart().unwrap();
    assert!(node.list().is_empty() && node.regions().is_empty() && !node.cdi_file("child").exists());
}

/// The share of the slice can be given out again at once.
#[test]
fn a_process_that_outlives_its_slice_s_owner_gets_nothing_more() {
    let mut node = Node::start();
    let mut owner = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    let slice = node.create_by(request("child", owner.id())).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    let limits = limits(Path::new(&slice.region_path));
    node.stop();
    owner.kill().unwrap();
    owner.wait().unwrap();
    node.restart().unwrap();
    assert!(node.list().is_empty());
    assert_eq!(limits.devices[0].core_limit_percent.load(Ordering::Relaxed), 0);
    assert!(tenant.tell("reserve 1000").starts_with("Err"));
}

#[test]
fn an_owner_that_is_not_there_is_refused() {
    let node = Node::start();
    refused(node.create_by(request("a", u32::MAX)), Code::InvalidArgument, "there is no such process");
    assert!(node.list().is_empty());
}
