//! Asks the leading scheduler.

use std::fmt::Display;
use std::time::Duration;

use aliquot_api_server::questions::{LEASE, Problem, QUESTIONS_PORT, pod_of};
use aliquot_api_server::{is_forbidden, message};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::port::{Port, Unreached};

/// How often to try, and the pause between two tries: when the leader changes, there is none for a moment.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// Why there is no answer from the leader.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The user has no right to ask.
    Forbidden(String),
    /// No leader can be reached.
    Away(String),
    /// The leader refuses the question, with this status and reason.
    Refused(u16, String),
}

impl NoAnswer {
    /// The reason as a sentence, with the remedy.
    pub(crate) fn why(&self) -> String {
        match self {
            NoAnswer::Forbidden(why) => format!(
                "you have no right to ask the scheduler ({why}); an administrator can bind you to the role \
                 aliquot-operator"
            ),
            NoAnswer::Away(why) => format!("the scheduler cannot be asked: {why}"),
            NoAnswer::Refused(_, why) => why.clone(),
        }
    }
}

impl From<NoAnswer> for Failure {
    fn from(no_answer: NoAnswer) -> Failure {
        Failure::new(no_answer.why())
    }
}

/// Asks the leading scheduler. The request is a POST if it has a body, else a GET.
pub(crate) async fn ask<T: DeserializeOwned>(
    cluster: &Cluster,
    path: &str,
    body: Option<Vec<u8>>,
) -> Result<T, NoAnswer> {
    read(&ask_again(cluster, path, body).await?)
}

/// Asks the leading scheduler, and returns its answer as it came.
pub(crate) async fn ask_text(cluster: &Cluster, path: &str) -> Result<String, NoAnswer> {
    String::from_utf8(ask_again(cluster, path, None).await?).map_err(|error| of_another_version(&error))
}

async fn ask_again(cluster: &Cluster, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, NoAnswer> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        match answer(cluster, path, body.clone()).await {
            Err(NoAnswer::Away(_) | NoAnswer::Refused(503, _)) if tries > 0 => sleep(PAUSE).await,
            answered => return answered,
        }
    }
}

/// Asks the leading scheduler without repetitions, for callers that can do without the answer.
///
/// # Errors
/// The reason why there is no answer.
pub(crate) async fn ask_once<T: DeserializeOwned>(
    cluster: &Cluster,
    path: &str,
    body: Option<Vec<u8>>,
) -> Result<T, NoAnswer> {
    read(&answer(cluster, path, body).await?)
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, NoAnswer> {
    serde_json::from_slice(answer).map_err(|error| of_another_version(&error))
}

fn of_another_version(error: &dyn Display) -> NoAnswer {
    NoAnswer::Refused(200, format!("the scheduler is of another version than this program: {error}"))
}

async fn answer(cluster: &Cluster, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, NoAnswer> {
    let namespace = &cluster.system_namespace;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), namespace);
    let lease = leases.get_opt(LEASE).await.map_err(refused)?;
    let lease = lease.ok_or_else(|| {
        NoAnswer::Away(format!("no scheduler has run in the namespace {namespace}; --system-namespace names another"))
    })?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    if holder.is_empty() {
        return Err(NoAnswer::Away("no replica leads now".to_owned()));
    }
    let pod = pod_of(&holder);
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let port = Port { pods: &pods, pod, port: QUESTIONS_PORT };
    let (status, answer) = match port.ask(path, body).await {
        Ok(answer) => answer,
        Err(Unreached::NotForwarded(error)) => return Err(refused(*error)),
        Err(Unreached::Silent(why)) => return Err(NoAnswer::Away(format!("its pod {pod} does not answer: {why}"))),
    };
    if status == 200 {
        return Ok(answer);
    }
    let problem = serde_json::from_slice::<Problem>(&answer).map(|of| of.problem);
    Err(NoAnswer::Refused(status, problem.unwrap_or_else(|_| format!("the scheduler answers with status {status}"))))
}

fn refused(error: kube::Error) -> NoAnswer {
    let why = message(&error);
    if is_forbidden(&error) { NoAnswer::Forbidden(why) } else { NoAnswer::Away(why) }
}
