//! User objects: a program's objects whose destructor is called when no graph needs them any more.

use core::ffi::{c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUgraph, CUhostFn, CUresult, CUuserObject};

use crate::Done;
use crate::caller::{not_null, put};
use crate::executor;
use crate::graphs::graph;
use crate::handles::{self, Kind, Object};
use crate::launches::HostCall;
use crate::process::process;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which every creation must pass.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over the caller's references.
const MOVE: c_uint = 1;
/// Maximum number of references that one call can take or release.
const COUNT_MAX: c_uint = i32::MAX as c_uint;

pub(crate) struct UserObject {
    destroy: HostCall,
    references: Mutex<usize>,
}

impl Object for UserObject {
    const KIND: Kind = Kind::UserObject;
}

fn user_object(handle: CUuserObject) -> Done<&'static UserObject> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}

fn check_count(count: c_uint) -> Done<usize> {
    if (1..=COUNT_MAX).contains(&count) { Ok(count as usize) } else { Err(CUresult::INVALID_VALUE) }
}

impl UserObject {
    fn references(&self) -> MutexGuard<'_, usize> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retain(&self, count: usize) {
        *self.references() += count;
    }

    /// Releases references. With the last one the object is destroyed, in the thread for host functions.
    fn release(&self, handle: CUuserObject, count: usize) -> Done {
        let mut references = self.references();
        *references = references.checked_sub(count).ok_or(CUresult::INVALID_VALUE)?;
        if *references == 0 && handles::retire::<UserObject>(handle.0).is_some() {
            let destroy = self.destroy;
            executor::spawn("fake-gpu-user", move || {
                crate::context::enter_callback_thread();
                destroy.call();
            });
        }
        Ok(())
    }
}

pub(crate) fn cuUserObjectCreate(
    target: *mut CUuserObject,
    pointer: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Done {
    process()?;
    not_null(target)?;
    let references = Mutex::new(check_count(references)?);
    if flags != NO_DESTRUCTOR_SYNC {
        return Err(CUresult::INVALID_VALUE);
    }
    let destroy = HostCall::new(destroy, pointer)?;
    put(target, CUuserObject(handles::register(UserObject { destroy, references }).0))
}

pub(crate) fn cuUserObjectRetain(handle: CUuserObject, count: c_uint) -> Done {
    user_object(handle)?.retain(check_count(count)?);
    Ok(())
}

pub(crate) fn cuUserObjectRelease(handle: CUuserObject, count: c_uint) -> Done {
    user_object(handle)?.release(handle, check_count(count)?)
}

/// A graph's references to user objects.
#[derive(Default)]
pub(crate) struct References(Mutex<BTreeMap<usize, usize>>);

impl References {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes as many references as another graph has.
    pub(crate) fn retain_all_of(&self, other: &References) {
        let copied = other.counts().clone();
        for (&handle, &count) in &copied {
            if let Ok(object) = user_object(handle_of(handle)) {
                object.retain(count);
            }
        }
        *self.counts() = copied;
    }

    /// Releases all references.
    pub(crate) fn release_all(&self) {
        for (handle, count) in std::mem::take(&mut *self.counts()) {
            if let Ok(object) = user_object(handle_of(handle)) {
                // Cannot fail: no more references are released than were taken.
                let _ = object.release(handle_of(handle), count);
            }
        }
    }
}

fn handle_of(number: usize) -> CUuserObject {
    CUuserObject(core::ptr::with_exposed_provenance_mut(number))
}

pub(crate) fn cuGraphRetainUserObject(
    graph_handle: CUgraph,
    handle: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> Done {
    let (graph, object) = (graph(graph_handle)?, user_object(handle)?);
    let count = check_count(count)?;
    if flags & !MOVE != 0 || (flags & MOVE != 0 && *object.references() < count) {
        return Err(CUresult::INVALID_VALUE);
    }
    if flags & MOVE == 0 {
        object.retain(count);
    }
    *graph.user_objects.counts().entry(handle.0.expose_provenance()).or_default() += count;
    Ok(())
}

pub(crate) fn cuGraphReleaseUserObject(graph_handle: CUgraph, handle: CUuserObject, count: c_uint) -> Done {
    let (graph, object) = (graph(graph_handle)?, user_object(handle)?);
    let count = check_count(count)?;
    {
        let mut counts = graph.user_objects.counts();
        let held = counts.get_mut(&handle.0.expose_provenance()).ok_or(CUresult::INVALID_VALUE)?;
        *held = held.checked_sub(count).ok_or(CUresult::INVALID_VALUE)?;
    }
    object.release(handle, count)
}
