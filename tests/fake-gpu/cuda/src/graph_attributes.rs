//! Attributes of kernel nodes. They are stored, returned and copied, but have no effect, because kernels compute
//! nothing.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUgraphNode, CUresult};

use crate::Done;
use crate::caller::{get, put};
use crate::graph_nodes::NodeKind;
use crate::graphs::{Node, node};
use crate::streams::{GREATEST_PRIORITY, LEAST_PRIORITY};

/// Bytes of a `CUlaunchAttributeValue`.
const VALUE_BYTES: usize = 64;
/// Access policy, cooperation, cluster, priority, memory synchronisation, shared memory.
const KNOWN: [c_uint; 12] = [1, 2, 4, 5, 8, 9, 10, 11, 13, 14, 16, 18];
const CLUSTER_DIMENSION: c_uint = 4;
const PRIORITY: c_uint = 8;

/// The values that were set, by `CUlaunchAttributeID`.
pub(crate) type Attributes = BTreeMap<c_uint, [u8; VALUE_BYTES]>;

fn attributes(node: &Node) -> MutexGuard<'_, Attributes> {
    node.attributes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kernel_node(handle: CUgraphNode) -> Done<&'static Node> {
    let node = node(handle)?;
    let is_kernel = matches!(&*node.kind(), NodeKind::Kernel(_));
    if is_kernel { Ok(node) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) fn cuGraphKernelNodeGetAttribute(handle: CUgraphNode, attribute: c_uint, value: *mut c_void) -> Done {
    let node = kernel_node(handle)?;
    if !KNOWN.contains(&attribute) {
        return Err(CUresult::INVALID_VALUE);
    }
    let known = attributes(node).get(&attribute).copied();
    put(value.cast(), known.unwrap_or([0; VALUE_BYTES]))
}

pub(crate) fn cuGraphKernelNodeSetAttribute(handle: CUgraphNode, attribute: c_uint, value: *const c_void) -> Done {
    let node = kernel_node(handle)?;
    let value = get(value.cast::<[u8; VALUE_BYTES]>())?;
    let number = c_int::from_ne_bytes([value[0], value[1], value[2], value[3]]);
    let valid = match attribute {
        PRIORITY => (GREATEST_PRIORITY..=LEAST_PRIORITY).contains(&number),
        CLUSTER_DIMENSION => number > 0,
        _ => KNOWN.contains(&attribute),
    };
    if !valid {
        return Err(CUresult::INVALID_VALUE);
    }
    attributes(node).insert(attribute, value);
    Ok(())
}

pub(crate) fn cuGraphKernelNodeCopyAttributes(target: CUgraphNode, source: CUgraphNode) -> Done {
    kernel_node(target)?;
    kernel_node(source)?;
    copy_attributes(target, source)
}

/// Copies the attributes of one node to another.
pub(crate) fn copy_attributes(target: CUgraphNode, source: CUgraphNode) -> Done {
    let values = attributes(node(source)?).clone();
    *attributes(node(target)?) = values;
    Ok(())
}
