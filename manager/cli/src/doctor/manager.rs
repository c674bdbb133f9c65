//! The node manager: whether it runs and is of this version.

use std::path::Path;

use aliquot_proto::node::v1::GetNodeRequest;

use super::finding::Finding;
use crate::client::{self, Absent};
use crate::error::{Failure, Result};

const WHAT: &str = "node manager";

/// Asks the manager for its version.
pub(super) fn finding(socket: Option<&Path>) -> Result<Finding> {
    let path = match client::find(socket) {
        Ok(path) => path,
        Err(absent @ Absent::Unreachable(..)) => {
            return Ok(Finding::fail(
                WHAT,
                Failure::from(absent).message(),
                "see the finding about the socket, or run as root",
            ));
        }
        Err(Absent::NotRunning(_)) => {
            return Ok(Finding::warn(
                WHAT,
                "does not run",
                "for slices that stay, and for containers: systemctl start aliquot-manager; aliquot run does without",
            ));
        }
    };
    let asked = client::runtime()?.block_on(async {
        let mut client = client::connect(&path).await?;
        Ok::<_, Failure>(client.get_node(GetNodeRequest {}).await?.into_inner())
    });
    let own = env!("CARGO_PKG_VERSION");
    Ok(match asked {
        Ok(node) if node.manager_version == own => {
            Finding::ok(WHAT, format!("{own} on {}, {} devices", path.display(), node.devices.len()))
        }
        Ok(node) => Finding::warn(
            WHAT,
            format!("is {}, this command line is {own}", node.manager_version),
            "install the same version of both, then: systemctl restart aliquot-manager",
        ),
        Err(failure) => Finding::fail(
            WHAT,
            failure.message(),
            "systemctl restart aliquot-manager; its log: journalctl -u aliquot-manager",
        ),
    })
}
