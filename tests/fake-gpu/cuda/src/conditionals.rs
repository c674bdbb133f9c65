//! Conditional nodes: graphs that run depending on a value.
//!
//! On a GPU, kernels set the value. Here kernels compute nothing, so every launch uses the handle's default value v. An
//! *if* node runs its first body if v ≠ 0, otherwise its second one, if it has two. A *switch* node runs body number v.
//! A *while* node runs its body v times.

use core::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUcontext, CUgraph, CUgraphConditionalHandle, CUresult};

use crate::Done;
use crate::caller::put;
use crate::context;
use crate::graphs::{contains, graph};

const IF: c_uint = 0;
const WHILE: c_uint = 1;
const SWITCH: c_uint = 2;
/// Each launch sets the value to its default. Without this flag the value would stay 0, because no kernel sets it.
const ASSIGN_DEFAULT: c_uint = 1;

#[derive(Clone)]
pub(crate) struct Conditional {
    pub(crate) handle: CUgraphConditionalHandle,
    pub(crate) kind: c_uint,
    /// The node's own graphs.
    pub(crate) bodies: Vec<CUgraph>,
}

struct Value {
    graph: CUgraph,
    at_launch: c_uint,
    used: bool,
}

/// The values of all handles. A handle's number is its index here plus 1.
static VALUES: Mutex<Vec<Value>> = Mutex::new(Vec::new());

fn values() -> MutexGuard<'static, Vec<Value>> {
    VALUES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn cuGraphConditionalHandleCreate(
    target: *mut CUgraphConditionalHandle,
    graph_handle: CUgraph,
    context_handle: CUcontext,
    default_value: c_uint,
    flags: c_uint,
) -> Done {
    graph(graph_handle)?;
    if context_handle.is_null() {
        context::current()?
    } else {
        context::context(context_handle)?
    };
    if flags & !ASSIGN_DEFAULT != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let at_launch = if flags & ASSIGN_DEFAULT == 0 { 0 } else { default_value };
    let mut values = values();
    put(target, values.len() as u64 + 1)?;
    values.push(Value { graph: graph_handle, at_launch, used: false });
    Ok(())
}

/// Whether a node of this kind can have `size` bodies.
fn is_size_possible(kind: c_uint, size: c_uint) -> bool {
    match kind {
        IF => matches!(size, 1 | 2),
        WHILE => size == 1,
        SWITCH => size > 0,
        _ => false,
    }
}

/// Claims a handle for a node of its graph or of an inner graph. Each handle can be claimed once.
pub(crate) fn claim(handle: CUgraphConditionalHandle, graph: CUgraph, kind: c_uint, size: c_uint) -> Done {
    let mut values = values();
    let place = handle.checked_sub(1).ok_or(CUresult::INVALID_VALUE)?;
    let value = values.get_mut(place as usize).filter(|value| !value.used).ok_or(CUresult::INVALID_VALUE)?;
    let is_reached = value.graph == graph || contains(value.graph, graph)?;
    if !is_reached || !is_size_possible(kind, size) {
        return Err(CUresult::INVALID_VALUE);
    }
    value.used = true;
    Ok(())
}

/// The indices of the bodies that a launch runs, in order.
pub(crate) fn runs_of(conditional: &Conditional) -> Vec<usize> {
    let values = values();
    let place = conditional.handle.saturating_sub(1) as usize;
    let value = values.get(place).map_or(0, |value| value.at_launch) as usize;
    match conditional.kind {
        IF => vec![usize::from(value == 0)],
        WHILE => vec![0; value],
        _ => vec![value],
    }
}
