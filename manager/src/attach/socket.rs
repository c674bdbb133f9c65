//! The attach socket, and what the kernel says about who is at its other end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aliquot_abi::region::{ATTACH_SOCKET, AttachMessage, SLOTS_MAX};
use nix::sys::socket::{getsockopt, sockopt};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::procfs;
use crate::slices::Owner;

/// Connections that wait to be accepted: as many as a slice has slots, which all attach at once after a start together.
const BACKLOG: i32 = SLOTS_MAX as i32;

/// Makes the attach socket in a region's directory, in place of the one that a manager before has left.
pub(super) fn listen(dir: &Path) -> io::Result<OwnedFd> {
    let (new, path) = (dir.join(".attach.new"), dir.join(ATTACH_SOCKET));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(&new)?)?;
    fs::set_permissions(&new, Permissions::from_mode(0o666))?;
    rustix::net::listen(&listener, BACKLOG)?;
    fs::rename(&new, &path)?;
    Ok(listener)
}

/// Takes a connection, if one waits.
pub(super) fn accept(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// What came over a connection.
pub(super) enum Received {
    /// A message.
    Message(AttachMessage),
    /// Something else, or nothing before the end.
    Garbage,
    /// Nothing yet.
    NotYet,
}

/// Reads what has come.
pub(super) fn receive(connection: &OwnedFd) -> Received {
    // One byte more than a message, so that a longer one is not taken for one.
    let mut bytes = [0; AttachMessage::BYTES + 1];
    match rustix::net::recv(connection, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((read, _)) => AttachMessage::from_bytes(&bytes[..read]).map_or(Received::Garbage, Received::Message),
        Err(Errno::AGAIN | Errno::INTR) => Received::NotYet,
        Err(_) => Received::Garbage,
    }
}

/// Who is at the other end.
pub(super) struct Peer {
    /// In the manager's pid namespace.
    pub(super) pid: u32,
    /// Readable when the process has ended; `None`: there is no descriptor left for it.
    pub(super) pidfd: Option<OwnedFd>,
}

/// Asks the kernel who is at the other end; `None` if that process is gone, or is of a namespace that cannot be seen.
pub(super) fn peer(connection: &OwnedFd) -> Option<Peer> {
    let pid = getsockopt(connection, sockopt::PeerCredentials).ok()?.pid();
    let pid = Pid::from_raw(pid)?;
    // Kernels before 6.5 have no such option. There a pid could have been given to another process in between; that
    // process would have to agree with the ledger in its pid, namespace and start time to be taken for the sender.
    let pidfd = match getsockopt(connection, sockopt::PeerPidfd) {
        Ok(pidfd) => Some(pidfd),
        Err(nix::errno::Errno::ENOPROTOOPT) => match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(Errno::SRCH) => return None,
            Err(_) => None,
        },
        Err(nix::errno::Errno::EMFILE | nix::errno::Errno::ENFILE | nix::errno::Errno::ENOMEM) => None,
        Err(_) => return None,
    };
    Some(Peer { pid: pid.as_raw_nonzero().get().cast_unsigned(), pidfd })
}

/// Opens a pidfd of the process `pid`, if `is_it` still says so once it is open.
pub(super) fn open_process(pid: u32, is_it: impl FnOnce() -> bool) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
    is_it().then_some(pidfd)
}

/// Opens a pidfd of a slice's owner.
pub(super) fn watch_owner(owner: Owner) -> io::Result<OwnedFd> {
    open_process(owner.pid, || procfs::start_time(owner.pid) == Some(owner.start_time))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("the owner, process {}, has ended", owner.pid)))
}

/// Whether the process of a pidfd has ended.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
