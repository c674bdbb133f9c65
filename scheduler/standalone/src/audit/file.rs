//! A log file that is renamed when it is long, and then begun anew.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A log file, with older ones beside it. Only their owner can read them.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file_bytes: u64,
    files: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    len: u64,
    /// The device and inode of the open file, which show whether the path still leads to it.
    inode: (u64, u64),
}

impl LogFile {
    /// The log in the file `path`, which is opened when the first line is added.
    pub(super) fn new(path: PathBuf, file_bytes: u64, files: u32) -> LogFile {
        LogFile { path, file_bytes, files, open: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, which must end with a line break. It survives the end of this process, but not a loss of power.
    ///
    /// # Errors
    /// If it cannot be written. No part of it remains before the next line then.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let is_there = |open: &Open| fs::metadata(&self.path).is_ok_and(|now| inode(&now) == open.inode);
        if self.open.as_ref().is_some_and(|open| !is_there(open)) {
            self.open = None;
        }
        let length = line.len() as u64;
        let now = self.opened()?.len;
        if now > 0 && now.saturating_add(length) > self.file_bytes {
            self.rotate()?;
        }
        let open = self.opened()?;
        let before = open.len;
        match open.file.write_all(line) {
            Ok(()) => {
                open.len += length;
                Ok(())
            }
            Err(error) => {
                // If the partial line cannot be removed, the next append repairs it when it opens the file.
                _ = open.file.set_len(before);
                self.open = None;
                Err(error)
            }
        }
    }

    fn opened(&mut self) -> io::Result<&mut Open> {
        let open = match self.open.take() {
            Some(open) => open,
            None => Open::new(&self.path)?,
        };
        Ok(self.open.insert(open))
    }

    /// Renames each file to the next number. The oldest file is overwritten.
    fn rotate(&mut self) -> io::Result<()> {
        self.open = None;
        for number in (1..self.files).rev() {
            match fs::rename(self.numbered(number - 1), self.numbered(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.files == 1 {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        if number == 0 {
            return self.path.clone();
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

impl Open {
    fn new(path: &Path) -> io::Result<Open> {
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let metadata = file.metadata()?;
        let mut len = metadata.len();
        let mut last = [b'\n'];
        if len > 0 && file.read_at(&mut last, len - 1).is_ok() && last != *b"\n" {
            // The last line is incomplete, because the process was killed or the disk was full.
            file.write_all(b"\n")?;
            len += 1;
        }
        Ok(Open { file, len, inode: inode(&metadata) })
    }
}

fn inode(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn log(dir: &tempfile::TempDir, file_bytes: u64, files: u32) -> LogFile {
        LogFile::new(dir.path().join("audit.jsonl"), file_bytes, files)
    }

    fn texts(dir: &tempfile::TempDir) -> Vec<(String, String)> {
        let files = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut texts: Vec<_> = files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect();
        texts.sort_unstable();
        texts
    }

    #[test]
    fn a_full_file_makes_room_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 4, 3);
        for line in ["a\n", "b\n", "c\n", "longer\n", "d\n", "e\n", "f\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        let expected = [("audit.jsonl", "f\n"), ("audit.jsonl.1", "d\ne\n"), ("audit.jsonl.2", "longer\n")];
        assert_eq!(texts(&dir), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        let mode = fs::metadata(log.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else reads it");
    }

    #[test]
    fn one_file_begins_anew_when_it_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 4, 1);
        for line in ["a\n", "b\n", "c\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        assert_eq!(texts(&dir), [("audit.jsonl".to_owned(), "c\n".to_owned())]);
    }

    #[test]
    fn a_line_that_a_kill_has_cut_does_not_spoil_the_next() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("audit.jsonl"), "whole\nha").unwrap();
        log(&dir, 4096, 2).append(b"next\n").unwrap();
        assert_eq!(texts(&dir)[0].1, "whole\nha\nnext\n");
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 4096, 2);
        log.append(b"old\n").unwrap();
        fs::rename(log.path(), dir.path().join("moved")).unwrap();
        log.append(b"new\n").unwrap();
        let expected = [("audit.jsonl", "new\n"), ("moved", "old\n")];
        assert_eq!(texts(&dir), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_full_disk_leaves_no_part_of_a_line() {
        let mut log = LogFile::new("/dev/full".into(), 4096, 2);
        assert_eq!(log.append(b"a\n").unwrap_err().raw_os_error(), Some(nix::libc::ENOSPC));
        assert!(log.append(b"b\n").is_err());
    }
}
