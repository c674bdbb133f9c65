//! `aliquot slice`: manages slices that stay until they are removed.

use std::path::Path;

use aliquot_proto::node::v1::{
    CreateSliceRequest, GetNodeRequest, GetSliceRequest, ListSlicesRequest, Node, Part, RemoveSliceRequest,
    ResizeSliceRequest, SharingMode, Slice,
};
use serde_json::json;

use crate::args::{SliceCommand, SliceCreateArgs, SliceLsArgs, SliceResizeArgs, SliceRmArgs};
use crate::client::{self, Client};
use crate::error::{Failure, Result};
use crate::output::Look;
use crate::ps::short_uuid;
use crate::quantity::{HostMemory, bytes_human};
use crate::table::{Align, Table, printable};
use crate::{json, output, parts, priority, user};

/// Runs one of the commands of `aliquot slice`.
pub(crate) async fn slice(socket: Option<&Path>, command: &SliceCommand) -> Result<()> {
    let mut client = client::connect_to_running(socket).await?;
    match command {
        SliceCommand::Create(args) => create(&mut client, args).await,
        SliceCommand::Resize(args) => resize(&mut client, args).await,
        SliceCommand::Rm(args) => remove(&mut client, args).await,
        SliceCommand::Ls(args) => list(&mut client, args).await,
    }
}

async fn create(client: &mut Client, args: &SliceCreateArgs) -> Result<()> {
    let node = client.get_node(GetNodeRequest {}).await?.into_inner();
    let request = CreateSliceRequest {
        name: args.name.clone(),
        parts: parts::of_share(&args.share, None, &node)?,
        description: args.description.clone(),
        owner_pid: 0,
        host_memory_limit_bytes: args.share.host_memory.map_or(0, HostMemory::limit_bytes),
        priority_class: priority::in_request(args.share.priority),
        allowed_uids: user::ids(&args.allow_user),
    };
    let slice = client.create_slice(request).await?.into_inner();
    if args.json {
        return output::print_json(&json::slice(&slice));
    }
    let mut text = said(&slice, &node);
    if !slice.cdi_device.is_empty() {
        text.push_str(&format!("Run a container in it: podman run --device {} IMAGE\n", slice.cdi_device));
    }
    output::print(&text)
}

async fn resize(client: &mut Client, args: &SliceResizeArgs) -> Result<()> {
    let node = client.get_node(GetNodeRequest {}).await?.into_inner();
    let before = client.get_slice(GetSliceRequest { name: args.name.clone() }).await?.into_inner();
    let host_memory_limit_bytes = args.host_memory.map(HostMemory::limit_bytes);
    let parts = match (args.gpu_core, args.gpu_core_limit, args.gpu_memory) {
        (None, None, None) => Vec::new(),
        (core, core_limit, memory) => parts::of_change(core, core_limit, memory, &args.device, &before.parts, &node)?,
    };
    let priority_class = priority::in_request(args.priority);
    let request = ResizeSliceRequest {
        name: args.name.clone(),
        parts,
        host_memory_limit_bytes,
        priority_class,
        allowed_uids: user::ids(&args.allow_user),
    };
    let slice = client.resize_slice(request).await?.into_inner();
    if args.json {
        return output::print_json(&json::slice(&slice));
    }
    for warning in &slice.warnings {
        output::say(format_args!("warning: {}", printable(warning)));
    }
    output::print(&said(&slice, &node))
}

async fn remove(client: &mut Client, args: &SliceRmArgs) -> Result<()> {
    let (mut removed, mut result) = (Vec::new(), Ok(()));
    for name in &args.names {
        let request = RemoveSliceRequest { name: name.clone(), force: args.force };
        match client.remove_slice(request).await {
            Ok(_) if args.json => removed.push(name.as_str()),
            Ok(_) => output::print(&format!("{name}: removed\n"))?,
            Err(status) => {
                if let Err(before) = std::mem::replace(&mut result, Err(Failure::from(status))) {
                    output::say(before);
                }
            }
        }
    }
    if args.json {
        output::print_json(&json!({ "removed": removed }))?;
    }
    result
}

async fn list(client: &mut Client, args: &SliceLsArgs) -> Result<()> {
    let slices = client.list_slices(ListSlicesRequest {}).await?.into_inner().slices;
    if args.json {
        return output::print_json(&json!({ "slices": slices.iter().map(json::slice).collect::<Vec<_>>() }));
    }
    output::print(&table(&slices, Look::of_stdout()))
}

/// Describes the parts of a slice, in one sentence each.
fn said(slice: &Slice, node: &Node) -> String {
    let parts = slice.parts.iter().map(|part| {
        let memory = format!("{} of {}", bytes_human(part.memory_limit_bytes), part.device_uuid);
        let limit = part.core_limit_percent;
        if is_shared_by_mps(part, node) {
            return format!("{}: {limit} % at most, by MPS, which guarantees nothing, {memory}\n", slice.name);
        }
        let (request, priority) = (part.core_request_percent, priority::name(slice.priority_class()));
        format!("{}: {request} % guaranteed, {limit} % at most, {memory}, {priority}\n", slice.name)
    });
    let mut text: String = parts.collect();
    if slice.host_memory_limit_bytes != 0 {
        let limit = bytes_human(slice.host_memory_limit_bytes);
        text.push_str(&format!("{}: {limit} of page-locked host memory at most\n", slice.name));
    }
    text
}

fn is_shared_by_mps(part: &Part, node: &Node) -> bool {
    node.devices.iter().any(|device| device.uuid == part.device_uuid && device.sharing() == SharingMode::Mps)
}

fn table(slices: &[Slice], look: Look) -> String {
    if slices.is_empty() {
        return "No slices.\n".to_owned();
    }
    let mut table = Table::new([
        ("SLICE", Align::Left),
        ("DEVICE", Align::Left),
        ("REQUEST", Align::Right),
        ("LIMIT", Align::Right),
        ("MEMORY", Align::Right),
        ("PRIORITY", Align::Left),
        ("PROCESSES", Align::Right),
        ("DESCRIPTION", Align::Left),
    ]);
    for slice in slices {
        for (index, part) in slice.parts.iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            table.row([
                once(slice.name.clone()),
                short_uuid(&part.device_uuid).to_owned(),
                format!("{} %", part.core_request_percent),
                format!("{} %", part.core_limit_percent),
                bytes_human(part.memory_limit_bytes),
                once(priority::name(slice.priority_class()).to_owned()),
                once(slice.processes.to_string()),
                once(slice.description.clone()),
            ]);
        }
    }
    table.render_as(look)
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{Device, PriorityClass};

    use super::*;

    #[test]
    fn a_slice_in_words_and_in_a_table() {
        let part = |uuid: &str| Part {
            device_uuid: uuid.to_owned(),
            core_request_percent: 30,
            core_limit_percent: 60,
            memory_limit_bytes: 4 << 30,
        };
        let slice = Slice {
            name: "train".to_owned(),
            parts: vec![part("GPU-a"), part("GPU-b")],
            processes: 2,
            description: "nightly".to_owned(),
            host_memory_limit_bytes: 2 << 30,
            priority_class: PriorityClass::Batch.into(),
            ..Slice::default()
        };
        let device = |uuid: &str, sharing: SharingMode| Device {
            uuid: uuid.to_owned(),
            sharing: sharing.into(),
            ..Device::default()
        };
        let devices = vec![device("GPU-a", SharingMode::Time), device("GPU-b", SharingMode::Mps)];
        let node = Node { devices, ..Node::default() };
        assert_eq!(
            said(&slice, &node),
            "train: 30 % guaranteed, 60 % at most, 4 GiB of GPU-a, batch\n\
             train: 60 % at most, by MPS, which guarantees nothing, 4 GiB of GPU-b\n\
             train: 2 GiB of page-locked host memory at most\n"
        );
        assert_eq!(
            table(&[slice], Look::PLAIN),
            "SLICE  DEVICE  REQUEST  LIMIT  MEMORY  PRIORITY  PROCESSES  DESCRIPTION\n\
             train  GPU-a      30 %   60 %   4 GiB  batch             2  nightly\n       \
                    GPU-b      30 %   60 %   4 GiB\n"
        );
    }
}
