//! The agent's requests to a job's first process while the job runs, over a socket in the instance's directory.
//!
//! Both sides send messages: first the length, with any descriptors, and then a text. The connection lives as long as
//! the requested thing: when the connection breaks, that ends.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum size of a message. The kernel takes commands of at most 2 MiB, and JSON may write a byte as six.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Maximum descriptors of a message: a command's standard input, output and error.
const DESCRIPTORS_MAX: usize = 3;

/// A request of the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Run a command beside the job's own. The message carries its standard input, output and error, or only its
    /// terminal.
    Exec {
        /// The program and its arguments.
        command: Vec<String>,
        /// The kind of its terminal; `None` if it gets pipes.
        terminal: Option<String>,
    },
    /// Connect to this port on the loopback address, as the job would.
    Connect(u16),
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The command runs, and its end follows in another message.
    Started,
    /// The connection is made, and comes with this message.
    Connected,
    /// The request could not be carried out.
    Failed {
        /// The failure, as a sentence for the user.
        why: String,
        /// The status that shells give for a command that cannot be run.
        exit_code: u8,
    },
    /// The command has ended with this code.
    Exited(i32),
    /// The command was ended by this signal.
    Killed(u32),
}

/// The socket of the instance in this directory.
pub(crate) fn socket_in(dir: &Path) -> PathBuf {
    dir.join("requests.sock")
}

/// Listens at the socket of the instance in `dir`, which only the node manager's user can enter.
pub(super) fn listen(dir: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(socket_in(dir))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Sends a message with these descriptors.
pub(crate) fn send<T: Serialize>(socket: &UnixStream, what: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(what)?;
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the message is too long"))?;
    let descriptors: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let along = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
    let length = length.to_le_bytes();
    // These few bytes are sent as a whole.
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&length)], along, MsgFlags::MSG_NOSIGNAL, None)?;
    (&*socket).write_all(&text)
}

/// Waits for a message, and takes the descriptors that come with it.
///
/// # Errors
/// [`ErrorKind::UnexpectedEof`] if the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut buffer = cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut descriptors = Vec::new();
    let mut parts = [IoSliceMut::new(&mut length)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut buffer), MsgFlags::MSG_CMSG_CLOEXEC)?;
    for message in got.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = message {
            // SAFETY: the kernel has just made these descriptors for this process, so nothing else owns them.
            descriptors.extend(received.into_iter().map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) }));
        }
    }
    match got.bytes {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        4 => {
            let mut text = vec![0; checked_length(u32::from_le_bytes(length))?];
            (&*socket).read_exact(&mut text)?;
            Ok((serde_json::from_slice(&text)?, descriptors))
        }
        _ => Err(damaged()),
    }
}

/// Receives a message without blocking the task's thread. It takes no descriptors.
pub(crate) async fn receive_later<T: DeserializeOwned>(socket: &mut tokio::net::UnixStream) -> io::Result<T> {
    use tokio::io::AsyncReadExt;
    let length = socket.read_u32_le().await?;
    let mut text = vec![0; checked_length(length)?];
    socket.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

fn checked_length(length: u32) -> io::Result<usize> {
    let length = Some(length).filter(|length| *length <= MESSAGE_BYTES_MAX);
    length.and_then(|length| usize::try_from(length).ok()).ok_or_else(damaged)
}

fn damaged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the message is damaged")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_takes_descriptors_along() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let request = Request::Exec { command: vec!["echo".into(), "\u{1}ä".repeat(50_000)], terminal: None };
        let sent = request.clone();
        let sending = std::thread::spawn(move || send(&near, &sent, &[writer.as_fd()]).unwrap());
        let (received, mut descriptors) = receive::<Request>(&far).unwrap();
        sending.join().unwrap();
        assert_eq!((received, descriptors.len()), (request, 1));
        File::from(descriptors.remove(0)).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert_eq!(receive::<Request>(&far).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn several_messages_keep_their_order_and_bounds() {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut far = tokio::net::UnixStream::from_std(far).unwrap();
        for reply in [Reply::Started, Reply::Exited(-1), Reply::Killed(9)] {
            send(&near, &reply, &[]).unwrap();
            assert_eq!(receive_later::<Reply>(&mut far).await.unwrap(), reply);
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        let damage = |bytes: &[u8]| {
            let (near, far) = UnixStream::pair().unwrap();
            (&near).write_all(bytes).unwrap();
            drop(near);
            receive::<Reply>(&far).unwrap_err().kind()
        };
        assert_eq!(damage(b"\xff\xff\xff\xff"), ErrorKind::InvalidData);
        assert_eq!(damage(b"\x01"), ErrorKind::InvalidData);
        assert_eq!(damage(b"\x02\0\0\0{}"), ErrorKind::InvalidData);
        assert_eq!(damage(b"\x09\0\0\0{}"), ErrorKind::UnexpectedEof);
    }
}
