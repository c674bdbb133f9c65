//! Queries about a stream's capture.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{CUgraph, CUgraphNode, CUstream, NullStream};

use super::{any_active, capture_of, captures};
use crate::Done;
use crate::caller::{not_null, put, put_if_wanted};
use crate::streams::stream;

const STATUS_NONE: c_uint = 0;
const STATUS_ACTIVE: c_uint = 1;
const STATUS_INVALIDATED: c_uint = 2;

/// Status and id of the capture that includes a stream, with its graph and the stream's position in it.
struct Information {
    status: c_uint,
    id: u64,
    graph: CUgraph,
    frontier: *const CUgraphNode,
    frontier_count: usize,
}

fn information(null: NullStream, handle: CUstream) -> Done<Information> {
    let stream = stream(null, handle)?;
    let none = Information {
        status: STATUS_NONE,
        id: 0,
        graph: CUgraph::NULL,
        frontier: core::ptr::null(),
        frontier_count: 0,
    };
    if !any_active() {
        return Ok(none);
    }
    let mut captures = captures();
    let Some(capture) = capture_of(&mut captures, stream, false)? else { return Ok(none) };
    if capture.invalidated {
        return Ok(Information { status: STATUS_INVALIDATED, ..none });
    }
    let (id, graph) = (capture.id, capture.graph);
    let frontier = &capture.valid_stream(stream)?.frontier;
    // The list stays at this address until the stream is used again, as the API promises.
    Ok(Information { status: STATUS_ACTIVE, id, graph, frontier: frontier.as_ptr(), frontier_count: frontier.len() })
}

pub(crate) fn cuStreamIsCapturing(null: NullStream, handle: CUstream, status: *mut c_uint) -> Done {
    not_null(status)?;
    put(status, information(null, handle)?.status)
}

pub(crate) fn cuStreamGetCaptureInfo(null: NullStream, handle: CUstream, status: *mut c_uint, id: *mut u64) -> Done {
    not_null(status)?;
    let information = information(null, handle)?;
    put_if_wanted(id, information.id);
    put(status, information.status)
}

pub(crate) fn cuStreamGetCaptureInfo_v2(
    null: NullStream,
    handle: CUstream,
    status: *mut c_uint,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    dependency_count: *mut usize,
) -> Done {
    not_null(status)?;
    let information = information(null, handle)?;
    put_if_wanted(id, information.id);
    put_if_wanted(graph, information.graph);
    put_if_wanted(dependencies, information.frontier);
    put_if_wanted(dependency_count, information.frontier_count);
    put(status, information.status)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuStreamGetCaptureInfo_v3(
    null: NullStream,
    handle: CUstream,
    status: *mut c_uint,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const c_void,
    dependency_count: *mut usize,
) -> Done {
    // Edges carry no data here.
    put_if_wanted(edges, core::ptr::null());
    cuStreamGetCaptureInfo_v2(null, handle, status, id, graph, dependencies, dependency_count)
}
