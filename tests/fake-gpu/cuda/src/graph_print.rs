//! `cuGraphDebugDotPrint`: a graph in the DOT language.

use core::ffi::{c_char, c_uint};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use aliquot_abi::cuda::{CUgraph, CUgraphNode, CUresult};

use crate::Done;
use crate::caller::text;
use crate::graph_nodes::NodeKind;
use crate::graphs::{Graph, graph};

/// All valid flags. Each requests more details, but only names are printed here.
const FLAGS: c_uint = 0x3_ffff;

fn label(kind: &NodeKind) -> String {
    let name = match kind {
        NodeKind::Kernel(kernel) => return kernel.name(),
        NodeKind::Copy(_) => "MEMCPY",
        NodeKind::Set(_) => "MEMSET",
        NodeKind::Host(_) => "HOST",
        NodeKind::Child(_) => "GRAPH",
        NodeKind::Empty => "EMPTY",
        NodeKind::EventWait(_) => "EVENT_WAIT",
        NodeKind::EventRecord(_) => "EVENT_RECORD",
        NodeKind::MemoryAllocation(_) => "MEM_ALLOC",
        NodeKind::MemoryFree(_) => "MEM_FREE",
        NodeKind::MemoryOperations(_) => "BATCH_MEM_OP",
        NodeKind::SemaphoreSignal(_) => "EXT_SEMAS_SIGNAL",
        NodeKind::SemaphoreWait(_) => "EXT_SEMAS_WAIT",
        NodeKind::Conditional(_) => "CONDITIONAL",
    };
    name.to_owned()
}

/// Writes the nodes and edges of a graph. Inner graphs are drawn in boxes.
fn write_graph(target: &mut String, graph: &Graph, number: &mut usize) -> Done {
    let box_number = *number;
    *number += 1;
    let name = |node: CUgraphNode| format!("node_{:x}", node.0.addr());
    let mut write = |line: std::fmt::Arguments<'_>| target.write_fmt(line).map_err(|_| CUresult::UNKNOWN);
    write(format_args!("subgraph cluster_{box_number} {{\nlabel=\"graph_{box_number}\"\n"))?;
    let ordered = graph.ordered().ok_or(CUresult::INVALID_VALUE)?;
    let mut inner = Vec::new();
    for (handle, node) in &ordered {
        let kind = node.kind();
        write(format_args!("\"{}\" [label=\"{}\"]\n", name(*handle), label(&kind)))?;
        for dependency in node.dependencies().iter() {
            write(format_args!("\"{}\" -> \"{}\"\n", name(*dependency), name(*handle)))?;
        }
        inner.extend_from_slice(kind.inner_graphs());
    }
    for handle in inner {
        write_graph(target, crate::graphs::graph(handle)?, number)?;
    }
    target.push_str("}\n");
    Ok(())
}

pub(crate) fn cuGraphDebugDotPrint(handle: CUgraph, path: *const c_char, flags: c_uint) -> Done {
    let graph = graph(handle)?;
    let path = std::ffi::OsStr::from_bytes(text(path)?.to_bytes());
    if flags & !FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut description = String::from("digraph dot {\n");
    write_graph(&mut description, graph, &mut 0)?;
    description.push_str("}\n");
    std::fs::write(path, description).map_err(|_| CUresult::INVALID_VALUE)
}
