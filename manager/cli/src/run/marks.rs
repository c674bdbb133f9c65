//! Runs without a daemon do not know each other's slices. Each marks its devices, so that a later one can warn.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// The most runs on one device that are looked at.
const RUNS_MAX: u32 = 64;

/// The marks of one run. They are abstract sockets: nothing of them remains, even if this process is killed.
pub(super) struct Marks {
    sockets: Vec<UnixListener>,
    /// The devices that other runs without a daemon use.
    pub(super) shared: Vec<String>,
}

impl Marks {
    /// Marks these devices as used, until this is dropped.
    pub(super) fn set<'a>(devices: impl Iterator<Item = &'a str>) -> Marks {
        let mut marks = Marks { sockets: Vec::new(), shared: Vec::new() };
        for device in devices {
            let mut is_shared = false;
            for run in 0..RUNS_MAX {
                let address = SocketAddr::from_abstract_name(format!("aliquot-run/{device}/{run}"));
                match address.and_then(|address| UnixListener::bind_addr(&address)) {
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => is_shared = true,
                    bound => {
                        // Without a mark a later run is not warned. Marks with greater numbers are of runs that came
                        // before this one, as did another that has ended.
                        marks.sockets.extend(bound);
                        is_shared |= (run + 1..RUNS_MAX).any(|other| is_set(device, other));
                        break;
                    }
                }
            }
            if is_shared {
                marks.shared.push(device.to_owned());
            }
        }
        marks
    }

    /// What the user should know; `None`: these devices are this run's alone.
    pub(super) fn warning(&self) -> Option<String> {
        (!self.shared.is_empty()).then(|| {
            format!(
                "another `aliquot run` without a daemon uses {}. Runs without a daemon do not know each other: together \
                 they must not ask for more than the device has. With aliquot-manager they share it exactly",
                self.shared.join(", ")
            )
        })
    }
}

/// Whether a run has this mark.
fn is_set(device: &str, run: u32) -> bool {
    let address = SocketAddr::from_abstract_name(format!("aliquot-run/{device}/{run}"));
    address.and_then(|address| UnixListener::bind_addr(&address)).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_learns_of_others_on_its_device_while_they_last() {
        let (device, other) = (format!("GPU-{}", std::process::id()), format!("GPU-other-{}", std::process::id()));
        let first = Marks::set([&*device].into_iter());
        assert_eq!(first.warning(), None);
        let second = Marks::set([&*other, &*device].into_iter());
        assert_eq!(second.shared, [&*device]);
        assert!(second.warning().expect("there is another").contains(&device));
        drop(first);
        let third = Marks::set([&*device].into_iter());
        assert_eq!(third.shared, [&*device], "the second one is still there");
        drop((second, third));
        assert_eq!(Marks::set([&*device].into_iter()).warning(), None);
    }
}
