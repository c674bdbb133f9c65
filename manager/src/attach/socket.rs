//! The attach socket, and the kernel's facts about the peer of a connection.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aliquot_abi::region::{ATTACH_SOCKET, AttachMessage, SLOTS_MAX};
use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::procfs;
use crate::slices::Owner;

/// Connections that may wait to be accepted: all slots of a slice, whose processes may start at the same time.
const BACKLOG: i32 = SLOTS_MAX as i32;

/// Makes the attach socket in a region's directory, replacing one left by an earlier manager.
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

/// Accepts a connection, if one waits.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// The result of reading from a connection.
pub(super) enum Received {
    /// A complete and well-formed message.
    Message(AttachMessage),
    /// Not a message, or the connection closed without one.
    Garbage,
    /// No message has arrived yet.
    NotYet,
}

/// Reads a message without blocking.
pub(super) fn receive(connection: &OwnedFd) -> Received {
    // One byte more than a message, so that a longer one is recognised as garbage.
    let mut bytes = [0; AttachMessage::BYTES + 1];
    match rustix::net::recv(connection, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((read, _)) => AttachMessage::from_bytes(&bytes[..read]).map_or(Received::Garbage, Received::Message),
        Err(Errno::AGAIN | Errno::INTR) => Received::NotYet,
        Err(_) => Received::Garbage,
    }
}

/// The process at the other end of a connection.
pub(super) struct Peer {
    /// The pid in the manager's pid namespace.
    pub(super) pid: u32,
    /// Readable when the process has ended. `None`: no descriptor was left for it.
    pub(super) pidfd: Option<OwnedFd>,
}

/// Asks the kernel for the peer. `None` if that process is gone, or is in a pid namespace that the manager cannot see.
/// It uses nix, because rustix has no `SO_PEERPIDFD`.
pub(super) fn peer(connection: &OwnedFd) -> Option<Peer> {
    let pid = getsockopt(connection, sockopt::PeerCredentials).ok()?.pid();
    let pid = Pid::from_raw(pid)?;
    // Kernels before 6.5 lack this option. There the pid could have been reused in between. But a new process is taken
    // for the sender only if it has the pid, namespace and start time that stand in the ledger.
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

/// Opens a pidfd of the process `pid`, if `is_it` confirms the process after it is open.
pub(super) fn open_process(pid: u32, is_it: impl FnOnce() -> bool) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
    is_it().then_some(pidfd)
}

/// Opens a pidfd of a slice's owner.
pub(super) fn watch_owner(owner: Owner) -> io::Result<OwnedFd> {
    open_process(owner.pid, || procfs::start_time(owner.pid) == Some(owner.start_time))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("the owner, process {}, has ended", owner.pid)))
}

/// Whether the process behind a pidfd has ended.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
