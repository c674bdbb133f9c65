//! Binds a pod to the node that kube-scheduler has chosen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::protocol::BindingArgs;
use crate::mirror::Choice;
use crate::serve::Shared;

/// A pod that kube-scheduler knows is seen here within that time, or something is wrong.
const SEEN_WITHIN: Duration = Duration::from_secs(3);
/// Time between two looks whether it was seen.
const LOOK: Duration = Duration::from_millis(20);
/// How long a request waits for the end of a binding. A binding that is still on its way then goes on.
const PATIENCE: Duration = Duration::from_secs(20);

/// Is told that a pod is bound, or why not.
type Waiter = oneshot::Sender<Result<(), String>>;

/// The requests that wait until a pod is bound, by its UID. There can be several for one pod: kube-scheduler may ask
/// again while the first request is under way.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<String, Vec<Waiter>>>);

impl Waiters {
    pub(crate) fn wait(&self, uid: &str) -> oneshot::Receiver<Result<(), String>> {
        let (tell, told) = oneshot::channel();
        let mut waiting = self.0.lock();
        let of_pod = waiting.entry(uid.to_owned()).or_default();
        of_pod.retain(|other| !other.is_closed());
        of_pod.push(tell);
        told
    }

    /// Tells all requests that wait for a pod what became of it.
    pub(crate) fn tell(&self, uid: &str, outcome: &Result<(), String>) {
        for waiting in self.0.lock().remove(uid).into_iter().flatten() {
            // A request that was given up is not told.
            _ = waiting.send(outcome.clone());
        }
    }
}

/// Binds a pod, and waits until it is bound.
///
/// # Errors
/// Why it is not bound, or not yet.
pub(super) async fn bind(shared: Arc<Shared>, args: BindingArgs) -> Result<(), String> {
    let BindingArgs { pod_name, pod_namespace, pod_uid: uid, node } = args;
    let full_name = format!("{pod_namespace}/{pod_name}");
    let began = Instant::now();
    let told = loop {
        let (choice, told) = shared.choose(&uid, &full_name, &node);
        match choice {
            Choice::Bound => return Ok(()),
            Choice::Waits => break told,
            Choice::Refused(why) => return Err(why),
            Choice::Unknown if began.elapsed() < SEEN_WITHIN => sleep(LOOK).await,
            Choice::Unknown => {
                return Err(format!("there is no pod {full_name} with the UID {uid}, or it was not seen yet"));
            }
        }
    };
    match timeout(PATIENCE, told).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err("this replica is no longer the leader".to_owned()),
        Err(_) => match shared.change(|mirror| mirror.give_up_choice(&uid)) {
            true => Err(format!("the scheduler could not begin to bind the pod within {} s", PATIENCE.as_secs())),
            false => Err(format!("the pod is still being bound to node {node}; ask again")),
        },
    }
}
