//! The output of jobs: a directory for each log, with pieces that are each named by the offset of their first byte. The
//! oldest pieces are removed when the log is too long.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::files;

/// Approximate number of pieces of a log, so at most this fraction of it is removed at once.
const PIECES: u64 = 8;
/// How much is read at once in the search for the beginning of the last lines.
const BLOCK_BYTES: u64 = 64 << 10;

/// File systems keep files and directories in pages of this size.
const PAGE_BYTES: u64 = 4096;

/// A log as it is on the disk.
struct Log {
    name: String,
    /// When it was last written to.
    written: SystemTime,
    /// The room that it takes.
    bytes: u64,
}

/// The logs of a node.
#[derive(Clone, Debug)]
pub(crate) struct Logs(PathBuf);

impl Logs {
    /// The logs in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Logs {
        Logs(dir)
    }

    /// The directory of the log `name`; `None` if the name cannot be one.
    pub(crate) fn dir(&self, name: &str) -> Option<PathBuf> {
        let is_sound = !name.is_empty()
            && name.len() <= 200
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        is_sound.then(|| self.0.join(name))
    }

    /// Removes the logs that were not written to for `age`, unless they are in use.
    pub(crate) fn remove_older_than(&self, age: Duration, is_in_use: impl Fn(&str) -> bool) {
        for log in self.all() {
            let is_old = SystemTime::now().duration_since(log.written).is_ok_and(|for_| for_ > age);
            if is_old && !is_in_use(&log.name) {
                let _ = fs::remove_dir_all(self.0.join(&log.name));
            }
        }
    }

    /// Removes the logs that were not written to for longest, unless they are in use, until all have at most `bytes_max`.
    pub(crate) fn shrink_to(&self, bytes_max: u64, is_in_use: impl Fn(&str) -> bool) {
        let mut logs = self.all();
        logs.sort_by_key(|log| log.written);
        let mut bytes: u64 = logs.iter().map(|log| log.bytes).sum();
        for log in logs {
            if bytes <= bytes_max {
                return;
            }
            if !is_in_use(&log.name) && fs::remove_dir_all(self.0.join(&log.name)).is_ok() {
                bytes -= log.bytes;
            }
        }
    }

    fn all(&self) -> Vec<Log> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let log = |entry: fs::DirEntry| {
            let pieces = pieces(&entry.path()).unwrap_or_default();
            let written = pieces.last().and_then(|(_, path)| fs::metadata(path).ok()?.modified().ok());
            let written = written.or_else(|| entry.metadata().ok()?.modified().ok())?;
            let of_pieces = pieces.iter().map(|(_, path)| length(path).next_multiple_of(PAGE_BYTES));
            let bytes = PAGE_BYTES + of_pieces.sum::<u64>();
            Some(Log { name: entry.file_name().into_string().ok()?, written, bytes })
        };
        entries.filter_map(log).collect()
    }
}

/// The pieces of the log in `dir`, the oldest first, with the byte at which each begins. A log that is not there has
/// none.
fn pieces(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?.into_iter(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pieces: Vec<_> =
        entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect();
    pieces.sort();
    Ok(pieces)
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Appends to a log.
pub(crate) struct Writer {
    dir: PathBuf,
    bytes_max: u64,
    piece: File,
    /// The offset at which the present piece begins, and the offset of the next byte.
    piece_begin: u64,
    end: u64,
    /// Bytes that could not be written since the last successful write.
    lost_bytes: u64,
}

impl Writer {
    /// Continues the log in `dir`, of which the newest `bytes_max` are kept.
    pub(crate) fn open(dir: &Path, bytes_max: u64) -> io::Result<Writer> {
        files::create_private_dir(dir)?;
        let newest = pieces(dir)?.pop();
        let piece_begin = newest.map_or(0, |(begin, _)| begin);
        let piece = open_piece(dir, piece_begin)?;
        let end = piece_begin + piece.metadata()?.len();
        Ok(Writer { dir: dir.to_owned(), bytes_max, piece, piece_begin, end, lost_bytes: 0 })
    }

    /// Appends `bytes`. Bytes that cannot be written are left out, and the log says so once it can be written again: a
    /// job must not end because its node's disk is full.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        if self.lost_bytes > 0 {
            let note = format!("\n[aliquot: {} bytes could not be written here]\n", self.lost_bytes);
            if self.write(note.as_bytes()).is_ok() {
                self.lost_bytes = 0;
            }
        }
        if self.write(bytes).is_err() {
            self.lost_bytes += bytes.len() as u64;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.end - self.piece_begin >= (self.bytes_max / PIECES).max(1) {
            self.piece = open_piece(&self.dir, self.end)?;
            self.piece_begin = self.end;
        }
        self.drop_oldest();
        let written = self.piece.write_all(bytes);
        // A part of the bytes may have been written.
        self.end = self.piece_begin + self.piece.metadata().map_or(0, |metadata| metadata.len());
        written
    }

    fn drop_oldest(&self) {
        for (begin, path) in pieces(&self.dir).unwrap_or_default() {
            if begin == self.piece_begin || self.end - begin <= self.bytes_max {
                return;
            }
            let _ = fs::remove_file(path);
        }
    }
}

fn open_piece(dir: &Path, begin: u64) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(dir.join(format!("{begin:020}")))
}

/// Reads up to `bytes_max` of the log in `dir` from `offset`. Returns the bytes and their offset, which is later than
/// `offset` if that part is gone. Returns no bytes at the end.
pub(crate) fn read(dir: &Path, offset: u64, bytes_max: usize) -> io::Result<(u64, Vec<u8>)> {
    loop {
        match read_once(dir, offset, bytes_max) {
            // The oldest piece was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            read => return read,
        }
    }
}

fn read_once(dir: &Path, offset: u64, bytes_max: usize) -> io::Result<(u64, Vec<u8>)> {
    let pieces = pieces(dir)?;
    let mut begin = offset.max(pieces.first().map_or(0, |(begin, _)| *begin));
    for (piece_begin, path) in &pieces {
        let length = length(path);
        if begin < *piece_begin {
            // The bytes between two pieces are missing.
            begin = *piece_begin;
        }
        if begin < piece_begin + length {
            let left = usize::try_from(piece_begin + length - begin).unwrap_or(usize::MAX);
            let mut bytes = vec![0; left.min(bytes_max)];
            File::open(path)?.read_exact_at(&mut bytes, begin - piece_begin)?;
            return Ok((begin, bytes));
        }
    }
    Ok((begin, Vec::new()))
}

/// The offset at which the last `lines` lines of the log in `dir` begin.
pub(crate) fn begin_of_last(dir: &Path, lines: u32) -> io::Result<u64> {
    let pieces = pieces(dir)?;
    let oldest = pieces.first().map_or(0, |(begin, _)| *begin);
    let end = pieces.last().map_or(0, |(begin, path)| begin + length(path));
    let (mut block_end, mut left) = (end, lines);
    while block_end > oldest {
        let block_begin = block_end.saturating_sub(BLOCK_BYTES).max(oldest);
        let mut block = Vec::new();
        while block_begin + (block.len() as u64) < block_end {
            let at = block_begin + block.len() as u64;
            let (begin, bytes) = read(dir, at, usize::try_from(block_end - at).unwrap_or(0))?;
            if bytes.is_empty() || begin != at {
                break;
            }
            block.extend(bytes);
        }
        for (at, byte) in block.iter().enumerate().rev() {
            let after = block_begin + at as u64 + 1;
            // A line end at the very end of the log begins no line.
            if *byte == b'\n' && after < end {
                left -= 1;
                if left == 0 {
                    return Ok(after);
                }
            }
        }
        block_end = block_begin;
    }
    Ok(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(dir: &Path, from: u64) -> (u64, String) {
        let (first, mut bytes) = read(dir, from, 3).unwrap();
        loop {
            let (_, more) = read(dir, first + bytes.len() as u64, 3).unwrap();
            if more.is_empty() {
                return (first, String::from_utf8(bytes).unwrap());
            }
            bytes.extend(more);
        }
    }

    #[test]
    fn another_attempt_goes_on_where_the_last_one_ended() {
        let dir = tempfile::tempdir().unwrap();
        Writer::open(dir.path(), 1 << 20).unwrap().append(b"one\n");
        Writer::open(dir.path(), 1 << 20).unwrap().append(b"two\n");
        assert_eq!(all(dir.path(), 0), (0, "one\ntwo\n".into()));
        assert_eq!(all(dir.path(), 4), (4, "two\n".into()));
        assert_eq!(read(dir.path(), 8, 3).unwrap(), (8, Vec::new()));
    }

    #[test]
    fn only_the_newest_part_of_a_long_log_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), 800).unwrap();
        let line = |number: usize| format!("line {number:04}\n");
        for number in 0..1000 {
            writer.append(line(number).as_bytes());
        }
        let (begin, kept) = all(dir.path(), 0);
        assert_eq!(begin + kept.len() as u64, 10_000);
        assert!((700..=910).contains(&kept.len()), "{}", kept.len());
        assert!(kept.ends_with(&line(999)) && begin % 10 == 0);
        assert_eq!(all(dir.path(), begin_of_last(dir.path(), 2).unwrap()).1, line(998) + &line(999));
        assert_eq!(begin_of_last(dir.path(), 100_000).unwrap(), begin);
    }

    #[test]
    fn the_last_lines_are_found_in_blocks_and_without_a_line_end() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(begin_of_last(dir.path(), 3).unwrap(), 0);
        let mut writer = Writer::open(dir.path(), 1 << 20).unwrap();
        let long = "x".repeat(100_000);
        writer.append(format!("a\n{long}\nend").as_bytes());
        assert_eq!(all_from_last(dir.path(), 1), "end");
        assert_eq!(all_from_last(dir.path(), 2), format!("{long}\nend"));
        assert_eq!(all_from_last(dir.path(), 3), format!("a\n{long}\nend"));
    }

    fn all_from_last(dir: &Path, lines: u32) -> String {
        let begin = begin_of_last(dir, lines).unwrap();
        let (at, bytes) = read(dir, begin, 1 << 20).unwrap();
        assert_eq!(at, begin);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let logs = Logs::new("/logs".into());
        assert_eq!(logs.dir("17.0.0"), Some("/logs/17.0.0".into()));
        for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(300)] {
            assert_eq!(logs.dir(name), None, "{name}");
        }
    }

    #[test]
    fn the_oldest_logs_go_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path().to_owned());
        for (age_s, name) in [(10, "4.0.0"), (30, "2.0.0"), (40, "1.0.0"), (20, "3.0.0")] {
            let log = logs.dir(name).unwrap();
            Writer::open(&log, 1 << 20).unwrap().append(&[b'x'; 5000]);
            let piece = File::open(&pieces(&log).unwrap()[0].1).unwrap();
            piece.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
        }
        // Each log takes three pages.
        let left = |pages: u64| {
            logs.shrink_to(pages * PAGE_BYTES, |name| name == "1.0.0");
            let mut names: Vec<String> = logs.all().into_iter().map(|log| log.name).collect();
            names.sort();
            names
        };
        assert_eq!(left(12).len(), 4);
        assert_eq!(left(11), ["1.0.0", "3.0.0", "4.0.0"]);
        assert_eq!(left(0), ["1.0.0"]);
    }

    #[test]
    fn old_logs_go_unless_something_writes_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path().to_owned());
        for name in ["1.0.0", "2.0.0"] {
            Writer::open(&logs.dir(name).unwrap(), 100).unwrap().append(b"x");
        }
        logs.remove_older_than(Duration::from_secs(3600), |_| false);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        logs.remove_older_than(Duration::ZERO, |name| name == "2.0.0");
        assert!(!dir.path().join("1.0.0").exists() && dir.path().join("2.0.0").exists());
    }
}
