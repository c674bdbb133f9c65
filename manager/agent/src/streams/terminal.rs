//! The node's side of the terminal of a user's command.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use aliquot_proto::stream::v1::TerminalSize;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Uid, fchown};
use tokio::io::unix::AsyncFd;

/// The side of a terminal that takes the user's input and gives the command's output.
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    /// Opens a terminal of this size for this user. Returns both sides: the node's and the command's.
    pub(super) fn open(size: TerminalSize, uid: u32) -> io::Result<(Terminal, OwnedFd)> {
        let OpenptyResult { master, slave } = openpty(&winsize(size), None)?;
        // Where the owner cannot be changed, only programs that open the terminal by its name fail.
        let _ = fchown(&slave, Some(Uid::from_raw(uid)), None);
        let _ = fchmod(&slave, Mode::S_IRUSR | Mode::S_IWUSR);
        for side in [&master, &slave] {
            fcntl(side, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        }
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped, which the `AsyncFd` does.
        let near = unsafe { AsyncFd::register(master) };
        Ok((Terminal(near.map_err(io::Error::from)?), slave))
    }

    /// Tells the command that the user's terminal has another size.
    pub(super) fn resize(&self, size: TerminalSize) {
        let size = winsize(size);
        // SAFETY: the descriptor is open, and the kernel reads the structure, which outlives the call. If it fails, the
        // command keeps the former size.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    }

    /// The command's output; 0 bytes when no process has the terminal open any more.
    pub(super) async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|side| Ok(nix::unistd::read(side, bytes)?)) {
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::EIO as i32) => return Ok(0),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return read,
                Err(_) => {}
            }
        }
    }

    /// Writes the user's input.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|side| Ok(nix::unistd::write(side, bytes)?)) {
                Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

fn winsize(size: TerminalSize) -> Winsize {
    let bounded = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    Winsize { ws_row: bounded(size.rows), ws_col: bounded(size.columns), ws_xpixel: 0, ws_ypixel: 0 }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[tokio::test]
    async fn what_is_written_comes_out_until_the_command_has_closed_it() {
        let own = nix::unistd::geteuid().as_raw();
        let (terminal, slave) = Terminal::open(TerminalSize { rows: 10, columns: 70_000 }, own).unwrap();
        terminal.write_all(b"typed\n").await.unwrap();
        let mut side = File::from(slave);
        let mut bytes = [0; 64];
        let count = side.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"typed\n");
        side.write_all(b"answer\n").unwrap();
        drop(side);
        let mut seen = Vec::new();
        loop {
            match terminal.read(&mut bytes).await.unwrap() {
                0 => break,
                count => seen.extend(&bytes[..count]),
            }
        }
        // The terminal echoes its input, and ends lines as terminals do.
        assert_eq!(String::from_utf8_lossy(&seen), "typed\r\nanswer\r\n");
    }
}
