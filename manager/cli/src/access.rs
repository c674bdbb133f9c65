//! Advice for a user who has no access to a daemon's socket.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Gid, Group, Uid, User};

use crate::server::Server;

/// The group to which root's daemons open their sockets, if the group exists when they start.
const GROUP: &str = "aliquot";

/// The owners of a socket.
struct Owners {
    user: String,
    is_root: bool,
    /// The group that may use it, unless that is root's, which a user cannot join.
    group: Option<String>,
}

/// The remedy for a `server`'s socket that this user cannot access.
pub(crate) fn remedy(socket: &Path, server: &Server) -> String {
    // Below a closed directory nothing can be examined.
    let owners = fs::metadata(socket).ok().map(|metadata| {
        let user = User::from_uid(Uid::from_raw(metadata.uid())).ok().flatten();
        let is_open_to_group = metadata.mode() & 0o020 != 0 && metadata.gid() != 0;
        let group = is_open_to_group.then(|| Group::from_gid(Gid::from_raw(metadata.gid())).ok().flatten()).flatten();
        Owners {
            user: user.map_or_else(|| metadata.uid().to_string(), |user| user.name),
            is_root: metadata.uid() == 0,
            group: group.map(|group| group.name),
        }
    });
    of_owners(server, owners, matches!(Group::from_name(GROUP), Ok(Some(_))))
}

fn of_owners(server: &Server, owners: Option<Owners>, has_group: bool) -> String {
    let make_group = if has_group { String::new() } else { format!("sudo groupadd --system {GROUP} && ") };
    match owners {
        None => "run as root (sudo), or have the directories above the socket opened to this user".to_owned(),
        Some(Owners { group: Some(group), .. }) => {
            format!("join the group that owns it: sudo usermod -aG {group} $USER, then log in again")
        }
        Some(Owners { is_root: true, .. }) => format!(
            "run as root (sudo), or open it to a group: {make_group}sudo usermod -aG {GROUP} $USER && sudo {}, \
             then log in again",
            server.restart()
        ),
        Some(Owners { user, .. }) => {
            format!(
                "it is the {} of user {user}: run as that user, or start one of your own: {}",
                server.name, server.program
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::NODE_MANAGER;

    #[test]
    fn only_an_existing_group_is_named() {
        let of = |user: &str, group: Option<&str>, has_group| {
            let owners = Owners { user: user.to_owned(), is_root: user == "root", group: group.map(ToOwned::to_owned) };
            of_owners(&NODE_MANAGER, Some(owners), has_group)
        };
        assert!(of("root", Some("gpu"), false).contains("sudo usermod -aG gpu $USER"));
        assert!(of("root", None, false).contains("sudo groupadd --system aliquot && sudo usermod -aG aliquot $USER"));
        assert!(!of("root", None, true).contains("groupadd"));
        assert!(of("root", None, true).contains("restart aliquot-manager"));
        assert!(!of("ada", None, false).contains("usermod") && of("ada", None, false).contains("user ada"));
        assert!(!of_owners(&NODE_MANAGER, None, false).contains("usermod"));
    }
}
