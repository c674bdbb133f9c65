//! Slices that end with their owner process.

use std::process::{Command, Stdio};

use aliquot_proto::node::v1 as proto;
use tonic::Code;

use crate::node::{GIB, Node, eventually, part, refused};

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

#[test]
fn an_owner_that_is_not_there_is_refused() {
    let node = Node::start();
    refused(node.create_by(request("a", u32::MAX)), Code::InvalidArgument, "there is no such process");
    assert!(node.list().is_empty());
}
