//! The file descriptors that this process may have open, and how they are budgeted.
//!
//! A slice needs a few, each attached process one (its pidfd), and each client of the sockets one. The number that
//! other processes can make this process open is bounded, so that a reserve stays. Without a free descriptor the
//! manager cannot accept a client, read `/proc` or write a checkpoint, and without `/proc` it could not tell live
//! processes from dead ones. A new slice that could not be watched is refused. A process beyond the bound gets no
//! pidfd, and the sweeps of the ledgers find its end.

use std::fs;
use std::io;

use rustix::fd::{AsFd, AsRawFd};
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors that a slice keeps open: its ledger, its attach socket, and its owner's pidfd.
const SLICE_DESCRIPTORS: usize = 3;
/// Processes of each slice for which descriptors are reserved.
const PROCESSES_PER_SLICE: usize = 8;
/// Where the kernel lists this process's descriptors.
const LIST: &str = "/proc/self/fd";
/// If fewer slices than this fit, a warning is logged at the start.
const FEW_SLICES: usize = 32;

/// The limit on open descriptors, and its budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    limit: usize,
}

/// Too few descriptors are left for another slice.
#[derive(Debug, thiserror::Error)]
#[error(
    "the manager's limit on open files (RLIMIT_NOFILE) is {limit}, {open} are open, and {kept} are reserved: the {needed} more \
     that a slice and its processes need do not fit; remove a slice, or raise the limit \
     (LimitNOFILE= in aliquot-manager.service, ulimit -Hn in the shell that starts it) and restart the manager"
)]
pub struct NoDescriptors {
    limit: usize,
    open: usize,
    kept: usize,
    needed: usize,
}

impl Descriptors {
    /// Raises the soft limit to the hard limit. The usual soft limit of 1024 exists for programs that use `select`.
    #[must_use]
    pub(crate) fn raise() -> Descriptors {
        let mut limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            limit.current = limit.maximum;
            if let Err(error) = setrlimit(Resource::Nofile, limit) {
                warn!(%error, "cannot raise the limit on open files");
            }
        }
        // `None` means no limit.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = Descriptors::of_limit(usize::try_from(limit).unwrap_or(usize::MAX));
        let room = descriptors.slices_beside(open());
        if room < FEW_SLICES {
            warn!(
                limit = descriptors.limit,
                room,
                "so few files may be open that no more slices than that can be watched; raise the limit (LimitNOFILE= in \
                 aliquot-manager.service, ulimit -Hn in a shell)"
            );
        }
        descriptors
    }

    /// Slices that can be watched if `open` descriptors are in use for other purposes.
    fn slices_beside(self, open: usize) -> usize {
        let left = self.limit.saturating_sub(self.reserve()).saturating_sub(open);
        left / (SLICE_DESCRIPTORS + PROCESSES_PER_SLICE)
    }

    fn of_limit(limit: usize) -> Descriptors {
        Descriptors { limit }
    }

    /// Maximum clients of the manager's socket at the same time. Further ones wait.
    #[must_use]
    pub(crate) fn clients_max(self) -> usize {
        (self.limit / 8).clamp(4, 256)
    }

    /// Descriptors that slices and their processes never get. They are for clients, and for files that are open only
    /// briefly.
    fn reserve(self) -> usize {
        self.clients_max() + (self.limit / 8).clamp(8, 128)
    }

    /// Checks whether `new` more slices can be watched. `processes` holds the number of processes of each existing
    /// slice.
    ///
    /// # Errors
    /// See [`NoDescriptors`].
    pub(crate) fn check_room(self, new: usize, processes: impl Iterator<Item = usize>) -> Result<(), NoDescriptors> {
        self.check(open(), new, processes)
    }

    fn check(self, open: usize, new: usize, processes: impl Iterator<Item = usize>) -> Result<(), NoDescriptors> {
        let to_come = processes.map(|count| PROCESSES_PER_SLICE.saturating_sub(count)).sum::<usize>();
        let (kept, needed) = (to_come + self.reserve(), new * (SLICE_DESCRIPTORS + PROCESSES_PER_SLICE));
        if open.saturating_add(kept).saturating_add(needed) > self.limit {
            return Err(NoDescriptors { limit: self.limit, open, kept, needed });
        }
        Ok(())
    }

    /// Whether `descriptor` may stay open without taking one of the reserve. The kernel always gives the lowest free
    /// number, so a high number means that all below it are in use.
    #[must_use]
    pub(crate) fn can_keep(self, descriptor: impl AsFd) -> bool {
        let number = usize::try_from(descriptor.as_fd().as_raw_fd()).unwrap_or_default();
        number < self.limit.saturating_sub(self.reserve())
    }
}

/// Number of open descriptors. If none is left to list them, the result is the maximum.
fn open() -> usize {
    told_by_size().unwrap_or_else(listed)
}

/// From Linux 6.2 on the size of the list's directory is the number. Asking for it costs the same however many
/// descriptors are open, and this is asked for each new slice.
fn told_by_size() -> Option<usize> {
    let bytes = fs::metadata(LIST).ok()?.len();
    usize::try_from(bytes).ok().filter(|open| *open > 0)
}

fn listed() -> usize {
    // The list's own descriptor is among the entries.
    fs::read_dir(LIST).map_or(usize::MAX, |entries| entries.count().saturating_sub(1))
}

/// Whether an operation failed only because this process or the machine has run out of a resource for the moment. Such
/// a failure says nothing about the object of the operation.
#[must_use]
pub(crate) fn is_want(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many slices with `processes` processes each are granted one after the other.
    fn granted(limit: usize, processes: usize) -> usize {
        let descriptors = Descriptors::of_limit(limit);
        let open = |slices: usize| 30 + slices * (SLICE_DESCRIPTORS + processes);
        let refused =
            (0..).find(|&slices| descriptors.check(open(slices), 1, std::iter::repeat_n(processes, slices)).is_err());
        refused.unwrap()
    }

    #[test]
    fn slices_are_refused_before_the_reserve_is_touched() {
        for limit in [40, 64, 256, 1024, 4096] {
            for processes in [0, 3, PROCESSES_PER_SLICE, 100] {
                let descriptors = Descriptors::of_limit(limit);
                let slices = granted(limit, processes);
                let each = SLICE_DESCRIPTORS + PROCESSES_PER_SLICE;
                if processes <= PROCESSES_PER_SLICE {
                    assert!(slices == 0 || 30 + slices * each + descriptors.reserve() <= limit, "{limit} {processes}");
                }
                assert!(descriptors.reserve() < limit);
            }
        }
        assert_eq!(granted(40, 0), 0);
        assert!(granted(1024, 0) >= 64);
        for limit in [40, 256, 1024] {
            assert_eq!(Descriptors::of_limit(limit).slices_beside(30), granted(limit, 0));
        }
    }

    #[test]
    fn the_refusal_names_the_remedy() {
        let error = Descriptors::of_limit(64).check(60, 1, std::iter::empty()).unwrap_err().to_string();
        assert!(error.contains("is 64, 60 are open") && error.contains("LimitNOFILE="), "{error}");
    }

    #[test]
    fn a_descriptor_of_the_reserve_is_known_by_its_number() {
        let file = fs::File::open("/dev/null").unwrap();
        assert!(Descriptors::of_limit(usize::MAX).can_keep(&file));
        assert!(!Descriptors::of_limit(0).can_keep(&file));
    }

    #[test]
    fn open_descriptors_are_counted_on_old_kernels_too() {
        let _files = [(); 100].map(|()| fs::File::open("/dev/null").unwrap());
        assert!(listed() >= 100 && open() >= 100);
        assert!(told_by_size().is_none_or(|open| open >= 100));
    }
}
