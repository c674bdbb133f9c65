//! The node manager: whether it runs and is of this version, and what its audit has found.

use std::path::Path;

use aliquot_proto::node::v1::{AuditPolicy, GetNodeRequest, ListFindingsRequest, ListFindingsResponse};

use super::finding::Finding;
use crate::client::{self, Absent};
use crate::error::{Failure, Result};

const WHAT: &str = "node manager";

/// Asks the manager for its version and for what it has found.
pub(super) fn findings(socket: Option<&Path>) -> Result<Vec<Finding>> {
    let path = match client::find(socket) {
        Ok(path) => path,
        Err(absent @ (Absent::Unreachable(..) | Absent::Foreign(_))) => {
            return Ok(vec![Finding::fail(
                WHAT,
                Failure::from(absent).message(),
                "see the finding about the socket, or run as root",
            )]);
        }
        Err(Absent::NotRunning(_)) => {
            return Ok(vec![Finding::warn(
                WHAT,
                "does not run",
                "for slices that stay, and for containers: systemctl start aliquot-manager; aliquot run does without",
            )]);
        }
    };
    let asked = client::runtime()?.block_on(async {
        let mut client = client::connect(&path).await?;
        let node = client.get_node(GetNodeRequest {}).await?.into_inner();
        // One of another version may not know this call.
        let audit = client.list_findings(ListFindingsRequest::default()).await.ok();
        Ok::<_, Failure>((node, audit.map(tonic::Response::into_inner)))
    });
    let own = env!("CARGO_PKG_VERSION");
    Ok(match asked {
        Ok((node, Some(answer))) if node.manager_version == own => {
            let value = format!("{own} on {}, {} devices", path.display(), node.devices.len());
            vec![Finding::ok(WHAT, value), audit(&answer)]
        }
        Ok((node, _)) => vec![Finding::warn(
            WHAT,
            format!("is {}, this command line is {own}", node.manager_version),
            "install the same version of both, then: systemctl restart aliquot-manager",
        )],
        Err(failure) => vec![Finding::fail(
            WHAT,
            failure.message(),
            "systemctl restart aliquot-manager; its log: journalctl -u aliquot-manager",
        )],
    })
}

/// Whether every process on the devices keeps to a slice.
fn audit(answer: &ListFindingsResponse) -> Finding {
    const WHAT: &str = "audit";
    let policy = match answer.policy() {
        AuditPolicy::Stop => "what gets past its slice is stopped",
        AuditPolicy::Report | AuditPolicy::Unspecified => "what gets past its slice is reported",
    };
    match answer.findings.iter().filter(|finding| finding.stopped.is_none()).count() {
        0 => Finding::ok(WHAT, format!("nothing found, {} stopped; {policy}", answer.stopped)),
        found => Finding::warn(
            WHAT,
            format!("{found} found, {} stopped; {policy}", answer.stopped),
            "aliquot ps says which; [audit] in the manager's configuration says what is done",
        ),
    }
}
