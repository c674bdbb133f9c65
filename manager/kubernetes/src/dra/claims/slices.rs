//! A claim's slices on the node: made together, and found by their names.

use aliquot_node::{CreateError, Node, NodeError, Slice};
use tracing::warn;

use super::ClaimError;
use crate::dra::allocation::ClaimSlice;
use crate::dra::names::ClaimUid;
use crate::dra::prepared_claims::Record;

/// All slices on the node with a name of this claim.
pub(super) fn of_claim(node: &dyn Node, uid: &ClaimUid) -> Vec<Slice> {
    // The UID of another claim can begin with this one.
    let is_its = |slice: &Slice| ClaimUid::of_slice(&slice.content.name).as_ref() == Some(uid);
    node.list_beginning_with(&uid.slice_name()).into_iter().filter(is_its).collect()
}

/// Removes slices that do not belong to the claim's division any more: kubelet was never told of them. A slice with
/// processes in it stays: a container has it, and its record was lost.
pub(super) fn remove_others(node: &dyn Node, record: &Record) -> Result<(), NodeError> {
    let wanted = |name: &str| record.slices.iter().any(|slice| slice.slice.name == name);
    let others = of_claim(node, &record.uid).into_iter().filter(|slice| !wanted(&slice.content.name));
    others.filter(|slice| slice.processes == 0).try_for_each(|slice| node.remove(&slice.content.name))
}

/// Makes the slices of a claim that kubelet was not told of yet. Slices of other content are leftovers of an earlier
/// try, and are replaced. If a slice cannot be made, those that were made here are removed again.
pub(super) fn create(node: &dyn Node, record: &Record) -> Result<Vec<Slice>, ClaimError> {
    let mut made: Vec<Slice> = Vec::new();
    let mut new = Vec::new();
    for ClaimSlice { slice, .. } in &record.slices {
        let was_there = node.get(&slice.name).is_some();
        let outcome = match node.create(slice) {
            Err(CreateError::Differs { difference, .. }) => {
                warn!(claim = %record.uid, difference, "makes a slice anew that was made before it was allocated so");
                node.remove(&slice.name).map_err(CreateError::from).and_then(|()| node.create(slice))
            }
            other => other,
        };
        match outcome {
            Ok(slice) => {
                new.extend((!was_there).then(|| slice.content.name.clone()));
                made.push(slice);
            }
            Err(error) => {
                for name in &new {
                    if let Err(error) = node.remove(name) {
                        warn!(claim = %record.uid, slice = name, %error, "cannot remove a slice that was just made");
                    }
                }
                return Err(error.into());
            }
        }
    }
    Ok(made)
}
