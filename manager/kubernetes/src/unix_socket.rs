//! Sockets that kubelet connects to.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {}: {source}", path.display())]
pub struct SocketError {
    path: PathBuf,
    source: io::Error,
}

/// A socket's file, for as long as this lives. One that another process has put in its place is left alone.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    /// Listens on `path`, in place of what a process that is gone has left there. Only root may connect.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn listen(path: &Path) -> Result<(SocketFile, UnixListener), SocketError> {
        let listen = || {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            let inode = inode(path)?;
            Ok((SocketFile { path: path.into(), inode }, listener))
        };
        listen().map_err(|source| SocketError { path: path.into(), source })
    }

    /// Whether it is still there, and the same.
    #[must_use]
    pub(crate) fn is_there(&self) -> bool {
        inode(&self.path).is_ok_and(|inode| inode == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // It is refused at the next connection, if not sooner.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_takes_the_place_of_an_old_one_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugins/x.sock");
        let (first, _listener) = SocketFile::listen(&path).unwrap();
        assert!(first.is_there());
        let (second, _listener) = SocketFile::listen(&path).unwrap();
        assert!(second.is_there() && !first.is_there());
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert!(!path.exists());
    }
}
