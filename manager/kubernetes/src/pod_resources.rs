//! The containers that have devices, as kubelet tells: by its `PodResources` service, and by its checkpoint of device
//! plugins' units for the containers that the service leaves out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::aside;
use aliquot_proto::kubelet::pod_resources::ListPodResourcesRequest;
use aliquot_proto::kubelet::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::unix_socket::channel;

mod consumers;
mod holders;
mod recorded;
pub use consumers::{Parts, keep_consumers};
pub use holders::{Holder, Holders, PodName};
pub use recorded::Recorded;

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a question is repeated that kubelet has rejected. It answers a hundred times a second, and rejects more
/// frequent questions.
const RETRY_AFTER: Duration = Duration::from_millis(50);
const ATTEMPTS_MAX: u32 = 40;
/// Maximum size of an answer. A node has at most some hundred pods, but each unit of a device is an id of about fifty
/// bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The longest time that kubelet is assumed to need until it has given a pod's units away, after it has asked which ones
/// are preferred. It takes milliseconds, and more than a second on a busy machine. Kubelet gives away none if it
/// refuses the pod.
const ADMISSION_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a question waits for pods to be admitted, one after the other.
const ADMISSIONS_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long an admission waits for the answer to a question that is under way. A relay waits a second for both.
const QUESTION_WAIT_MAX: Duration = Duration::from_millis(800);
/// Time between two looks at whether kubelet has given units away.
const ADMISSION_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why it is not known which containers have devices.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot get the devices of containers from kubelet on {}: {reason}; check that kubelet serves PodResources there", path.display())]
pub struct ListError {
    path: PathBuf,
    reason: String,
}

/// A client of kubelet's service `PodResources`.
#[derive(Debug)]
pub struct PodResources {
    path: PathBuf,
    checkpoint: PathBuf,
    client: PodResourcesListerClient<Channel>,
    /// The last answer. A caller that asks kubelet holds the lock. Callers that wait for the lock use the answer, if
    /// the question was asked after they had come.
    last: Mutex<Option<Answer>>,
    /// The units that kubelet was about to give away last.
    admission: parking_lot::Mutex<Option<Admission>>,
    /// Held while kubelet is asked.
    asking: Mutex<()>,
}

#[derive(Debug)]
struct Answer {
    asked: Instant,
    holders: Arc<Holders>,
}

/// Units that kubelet is about to give away.
#[derive(Clone, Debug)]
struct Admission {
    resource: String,
    ids: BTreeSet<String>,
    /// The UIDs of pods and names of containers that had them before. The checkpoint has ended pods until kubelet writes
    /// it again.
    had_them: Vec<(String, String)>,
    /// After this time kubelet is assumed to have refused the pod.
    until: Instant,
}

impl PodResources {
    /// A client of the service below kubelet's directory. It does not connect yet.
    #[must_use]
    pub fn new(kubelet_dir: &Path) -> PodResources {
        let path = kubelet_dir.join("pod-resources/kubelet.sock");
        let checkpoint = kubelet_dir.join(recorded::FILE);
        let client = PodResourcesListerClient::new(channel(path.clone())).max_decoding_message_size(MESSAGE_BYTES_MAX);
        PodResources {
            client,
            path,
            checkpoint,
            last: Mutex::default(),
            admission: parking_lot::Mutex::default(),
            asking: Mutex::default(),
        }
    }

    /// The containers with devices, as of now or later. Callers that come while a question is under way share the next
    /// answer: so kubelet is not asked once for each of two hundred containers that start at the same time.
    ///
    /// # Errors
    /// Kubelet does not answer.
    pub async fn list(&self) -> Result<Arc<Holders>, ListError> {
        let came = Instant::now();
        let mut last = self.last.lock().await;
        if let Some(answer) = last.as_ref().filter(|answer| answer.asked >= came) {
            return Ok(Arc::clone(&answer.holders));
        }
        let asked = Instant::now();
        let holders = Arc::new(self.ask().await?);
        *last = Some(Answer { asked, holders: Arc::clone(&holders) });
        Ok(holders)
    }

    /// Notes that kubelet is about to give these units of a resource away, and waits until a question that is under way
    /// is answered. A question that reaches kubelet while it waits for a plugin's answer to `Allocate` can make it
    /// forget that it has given these units away: then it gives them to the next pod, too (Kubernetes PR 137534). So no
    /// question is asked until they are in kubelet's checkpoint, which it writes when it has given them away.
    pub(crate) async fn admission_begins(&self, resource: &str, ids: BTreeSet<String>) {
        let recorded = self.recorded().await.unwrap_or_default();
        let had_them = recorded.iter().filter(|of| of.has(resource, &ids)).map(Recorded::key).collect();
        let until = Instant::now() + ADMISSION_TIME_MAX;
        *self.admission.lock() = Some(Admission { resource: resource.into(), ids, had_them, until });
        // Kubelet admits no other pod meanwhile.
        let _ = timeout(QUESTION_WAIT_MAX, self.asking.lock()).await;
    }

    /// Whether kubelet is about to give units away.
    async fn is_admitting(&self) -> bool {
        let admission = self.admission.lock().clone();
        let Some(begun) = admission.filter(|of| Instant::now() < of.until) else { return false };
        let is_given = |of: &Recorded| of.has(&begun.resource, &begun.ids) && !begun.had_them.contains(&of.key());
        !self.recorded().await.is_ok_and(|recorded| recorded.iter().any(is_given))
    }

    async fn ask(&self) -> Result<Holders, ListError> {
        let latest = Instant::now() + ADMISSIONS_WAIT_MAX;
        let _asking = loop {
            let asking = self.asking.lock().await;
            if !self.is_admitting().await || Instant::now() >= latest {
                break asking;
            }
            drop(asking);
            sleep(ADMISSION_LOOK_INTERVAL).await;
        };
        let mut client = self.client.clone();
        for _ in 0..ATTEMPTS_MAX {
            let mut request = Request::new(ListPodResourcesRequest {});
            request.set_timeout(ANSWER_TIMEOUT);
            match client.list(request).await {
                Ok(answer) => return Ok(Holders::new(answer.into_inner(), self.recorded().await)),
                Err(status) if status.code() == Code::ResourceExhausted => sleep(RETRY_AFTER).await,
                Err(status) => return Err(self.error(status.message())),
            }
        }
        Err(self.error("it was asked too often by others"))
    }

    /// Kubelet's checkpoint, read without a question to kubelet.
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub(crate) async fn recorded(&self) -> Result<Vec<Recorded>, String> {
        let path = self.checkpoint.clone();
        let read =
            aside(move || recorded::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display())));
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn error(&self, reason: &str) -> ListError {
        ListError { path: self.path.clone(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::device_plugin::test_kubelet::TestKubelet;

    const RESOURCE: &str = "aliquot.dev/gpu-core";

    fn ids(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Has kubelet's checkpoint say that a container was given these units.
    fn record(dir: &Path, pod_uid: &str, given: &[&str]) {
        let entry = json!({
            "PodUID": pod_uid, "ContainerName": "main", "ResourceName": RESOURCE, "DeviceIDs": {"-1": given},
        });
        let checkpoint = dir.join(recorded::FILE);
        std::fs::write(checkpoint, json!({"Data": {"PodDeviceEntries": [entry]}}).to_string()).unwrap();
    }

    #[tokio::test]
    async fn kubelet_is_not_asked_until_it_has_given_the_units_away() {
        let dir = tempfile::tempdir().unwrap();
        let _kubelet = TestKubelet::start(dir.path());
        let pod_resources = PodResources::new(dir.path());
        // An ended pod had the units, and is still in the checkpoint.
        record(dir.path(), "ended", &["a::2", "a::3"]);
        pod_resources.admission_begins(RESOURCE, ids(&["a::2", "a::3"])).await;
        assert!(pod_resources.is_admitting().await);
        {
            let mut question = std::pin::pin!(pod_resources.list());
            // On a busy machine both can be ready at once. Then nothing can be said of the question.
            tokio::select! {
                biased;
                () = sleep(4 * ADMISSION_LOOK_INTERVAL) => {}
                _ = &mut question => panic!("kubelet was asked while it gave units away"),
            }
            record(dir.path(), "new", &["a::1", "a::2", "a::3"]);
            question.await.unwrap();
        }
        assert!(!pod_resources.is_admitting().await);
    }

    #[tokio::test]
    async fn an_admission_waits_until_a_question_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let pod_resources = PodResources::new(dir.path());
        let asking = pod_resources.asking.lock().await;
        let mut admission = std::pin::pin!(pod_resources.admission_begins(RESOURCE, ids(&["a::1"])));
        tokio::select! {
            biased;
            () = &mut admission => panic!("kubelet was being asked"),
            () = std::future::ready(()) => {}
        }
        drop(asking);
        admission.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_waits_only_so_long_for_admissions() {
        let dir = tempfile::tempdir().unwrap();
        let pod_resources = Arc::new(PodResources::new(dir.path()));
        let admitting = Arc::clone(&pod_resources);
        let admissions = tokio::spawn(async move {
            loop {
                admitting.admission_begins(RESOURCE, ids(&["a::1"])).await;
                sleep(ADMISSION_TIME_MAX / 5).await;
            }
        });
        // No server is there, so the question was asked and failed.
        assert!(pod_resources.list().await.is_err());
        admissions.abort();
    }
}
