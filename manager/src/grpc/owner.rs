//! The owner and the users of a slice.
//!
//! A caller may tie a slice to a process only if it is that process, its parent, its user, or root. Otherwise one user
//! could make the manager watch another user's processes.

use std::collections::BTreeSet;

use tokio::net::unix::UCred;
use tonic::Status;

use crate::procfs;
use crate::slices::Owner;

/// Verifies the owner `pid` that a request of `peer` names; `None` for pid 0.
pub(super) fn verified(pid: u32, peer: Option<UCred>) -> Result<Option<Owner>, Status> {
    if pid == 0 {
        return Ok(None);
    }
    let gone = || Status::invalid_argument(format!("owner_pid is {pid}, and there is no such process"));
    let start_time = procfs::start_time(pid).ok_or_else(gone)?;
    let uid = procfs::uid(pid).ok_or_else(gone)?;
    let peer =
        peer.ok_or_else(|| Status::permission_denied("an owner can be named over the manager's own socket only"))?;
    let peer_pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
    let family = peer_pid.is_some_and(|peer| peer == pid || procfs::parent(pid) == Some(peer));
    if !family && peer.uid() != uid && peer.uid() != 0 {
        let message = format!("owner_pid is {pid}, a process of user {uid}; name a process of your own");
        return Err(Status::permission_denied(message));
    }
    Ok(Some(Owner { pid, start_time }))
}

/// The users among `users` who must be let into a slice: root and the manager's own user can enter it anyway.
pub(super) fn users(users: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    let own = nix::unistd::geteuid().as_raw();
    users.into_iter().filter(|&user| user != 0 && user != own).collect()
}
