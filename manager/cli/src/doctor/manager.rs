//! Checks whether the node manager runs and has this version, and shows the findings of its audit.

use std::path::{Path, PathBuf};

use aliquot_manager::paths::Paths;
use aliquot_proto::node::v1::{
    AuditPolicy, GetNodeRequest, ListFindingsRequest, ListFindingsResponse, Node, Shortcoming,
};

use super::finding::Finding;
use crate::client::{self, Absent};
use crate::error::{Failure, Result};

const WHAT: &str = "node manager";

/// The manager, as far as it can be reached.
pub(super) struct Manager {
    state: State,
    /// The socket that was tried, or the one that it serves.
    pub(super) socket: PathBuf,
}

enum State {
    /// The manager answers: the node, and its findings, if it knows that call.
    Answers(Box<Node>, Option<ListFindingsResponse>),
    /// The manager exists, but does not answer.
    Silent(Failure),
    NotRunning,
}

impl Manager {
    /// Asks the manager for its version, its directories and its findings.
    pub(super) fn ask(socket: Option<&Path>) -> Result<Manager> {
        let usual = || socket.map_or_else(|| Paths::of_this_user().socket(), Path::to_owned);
        let path = match client::find(socket) {
            Ok(path) => path,
            Err(Absent::NotRunning(_)) => return Ok(Manager { state: State::NotRunning, socket: usual() }),
            Err(absent) => {
                let socket = match &absent {
                    Absent::Unreachable(socket, _) => socket.clone(),
                    Absent::Foreign(_) | Absent::NotRunning(_) => usual(),
                };
                return Ok(Manager { state: State::Silent(absent.into()), socket });
            }
        };
        let asked = client::runtime()?.block_on(async {
            let mut client = client::connect(&path).await?;
            let node = client.get_node(GetNodeRequest {}).await?.into_inner();
            // A manager of another version may not know this call.
            let audit = client.list_findings(ListFindingsRequest::default()).await.ok();
            Ok::<_, Failure>((Box::new(node), audit.map(tonic::Response::into_inner)))
        });
        let state = asked.map_or_else(State::Silent, |(node, audit)| State::Answers(node, audit));
        Ok(Manager { state, socket: path })
    }

    /// The node, if the manager answers.
    pub(super) fn node(&self) -> Option<&Node> {
        match &self.state {
            State::Answers(node, _) => Some(node),
            State::Silent(_) | State::NotRunning => None,
        }
    }

    /// The finding about what the cluster lacks, as far as the manager knows of it.
    pub(super) fn cluster(&self) -> Option<Finding> {
        let Shortcoming { problem, remedy } = self.node()?.shortcoming.as_ref()?;
        Some(Finding::warn("Kubernetes", problem, remedy))
    }

    /// Findings about the manager.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let own = env!("CARGO_PKG_VERSION");
        match &self.state {
            State::Answers(node, Some(answer)) if node.manager_version == own => {
                let devices = match node.devices.len() {
                    1 => "1 device".to_owned(),
                    count => format!("{count} devices"),
                };
                vec![Finding::ok(WHAT, format!("{own} on {}, {devices}", self.socket.display())), audit(answer)]
            }
            State::Answers(node, _) => vec![Finding::warn(
                WHAT,
                format!("is {}, this command line is {own}", node.manager_version),
                "install the same version of both, then: systemctl restart aliquot-manager",
            )],
            State::Silent(failure) => {
                let remedy = failure.remedy().unwrap_or("its log says more: journalctl -u aliquot-manager");
                vec![Finding::fail(WHAT, failure.message(), remedy)]
            }
            State::NotRunning => vec![Finding::warn(
                WHAT,
                "does not run",
                "for slices that stay, and for containers: systemctl start aliquot-manager; aliquot run does without",
            )],
        }
    }
}

/// The finding about the audit: whether every process on the devices keeps to a slice.
fn audit(answer: &ListFindingsResponse) -> Finding {
    const WHAT: &str = "audit";
    let policy = match answer.policy() {
        AuditPolicy::Stop => "processes that bypass their slice are stopped",
        AuditPolicy::Report | AuditPolicy::Unspecified => "processes that bypass their slice are reported",
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
