//! Completion of jobs, queues, nodes, users and secrets on the shell's command line, with answers from the scheduler.

use std::ffi::OsStr;

use aliquot_proto::scheduler::v1::{
    ListJobsRequest, ListNodesRequest, ListQueuesRequest, ListSecretsRequest, ListUsersRequest,
};
use clap_complete::engine::CompletionCandidate;

use super::{Client, connect_to_running, failed};
use crate::client;
use crate::completion;
use crate::error::Result;
use crate::table::printable;

/// Maximum jobs offered. More do not help a user to complete a number.
const JOBS_MAX: u32 = 100;

/// Numbers of jobs that have not ended, with their names.
pub(crate) fn jobs(begun: &OsStr) -> Vec<CompletionCandidate> {
    let request = ListJobsRequest { active: true, count_max: JOBS_MAX, ..ListJobsRequest::default() };
    let jobs = asked(async |mut client| Ok(client.list_jobs(request).await.map_err(failed)?.into_inner().jobs));
    let described =
        jobs.into_iter().map(|job| (job.id.to_string(), job.spec.map(|spec| spec.name).unwrap_or_default()));
    candidates(described, begun)
}

/// Names of queues that begin with `begun`.
pub(crate) fn queues(begun: &OsStr) -> Vec<CompletionCandidate> {
    let queues = asked(async |mut client| {
        Ok(client.list_queues(ListQueuesRequest {}).await.map_err(failed)?.into_inner().queues)
    });
    candidates(queues.into_iter().map(|queue| (queue.name, String::new())), begun)
}

/// Names of nodes that begin with `begun`.
pub(crate) fn nodes(begun: &OsStr) -> Vec<CompletionCandidate> {
    let nodes =
        asked(async |mut client| Ok(client.list_nodes(ListNodesRequest {}).await.map_err(failed)?.into_inner().nodes));
    candidates(nodes.into_iter().map(|node| (node.name, String::new())), begun)
}

/// Names of users of other machines.
pub(crate) fn users(begun: &OsStr) -> Vec<CompletionCandidate> {
    let users =
        asked(async |mut client| Ok(client.list_users(ListUsersRequest {}).await.map_err(failed)?.into_inner().users));
    let of_others = users.into_iter().filter(|user| !user.is_local);
    candidates(of_others.map(|user| (user.name, String::new())), begun)
}

/// Names of secrets that the caller may see, asked from the scheduler.
pub(crate) fn secrets(begun: &OsStr) -> Vec<CompletionCandidate> {
    let secrets = asked(async |mut client| {
        Ok(client.list_secrets(ListSecretsRequest {}).await.map_err(failed)?.into_inner().secrets)
    });
    candidates(secrets.into_iter().map(|secret| (secret.name, secret.queue)), begun)
}

/// The scheduler's answer; nothing if it does not answer.
fn asked<T>(ask: impl AsyncFnOnce(Client) -> Result<Vec<T>>) -> Vec<T> {
    let socket = completion::socket("--scheduler", "ALIQUOT_SCHEDULER");
    let answer = client::runtime()
        .and_then(|runtime| runtime.block_on(async { ask(connect_to_running(socket.as_deref()).await?).await }));
    answer.unwrap_or_default()
}

fn candidates(words: impl Iterator<Item = (String, String)>, begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let candidate = |(word, help): (String, String)| {
        let help = (!help.is_empty()).then(|| printable(&help).into());
        CompletionCandidate::new(printable(&word)).help(help)
    };
    words.filter(|(word, _)| word.starts_with(&*begun)).map(candidate).collect()
}
