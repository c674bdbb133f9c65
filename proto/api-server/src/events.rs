//! Problems and recoveries as events, which `kubectl describe` shows.
//!
//! `kube::runtime::events::Recorder` does not fit here. It counts all events with one reason as one event, and keeps
//! the first text: a claim that is refused for a new reason would still show the old one. And when the manager ends, it
//! forgets which events it has written. Here an event's name is computed from its text, so the API server finds an
//! equal event again.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::client::{is_conflict, message};

/// The greatest length of an event's text.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The greatest length of an event's name.
const NAME_BYTES_MAX: usize = 253;

/// The reason of events about an annotation that has no effect on the pod.
pub const NOT_READ: &str = "AnnotationNotRead";

/// A pod, for events about it.
#[must_use]
pub fn pod_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}

/// Writes events of one component.
#[derive(Clone)]
pub struct Events {
    client: Client,
    component: &'static str,
    node_name: String,
}

impl Events {
    /// Events that `component` on the node writes.
    #[must_use]
    pub fn new(client: Client, component: &'static str, node_name: String) -> Events {
        Events { client, component, node_name }
    }

    /// Reports a problem of `about`. If it was reported before, its count is increased. A failure to write the event is
    /// only logged: the problem is always reported in another way as well.
    pub async fn warn(&self, about: ObjectReference, reason: &str, text: &str) {
        self.say("Warning", about, reason, text).await;
    }

    /// Reports the recovery of `about`, in the same way.
    pub async fn note(&self, about: ObjectReference, reason: &str, text: &str) {
        self.say("Normal", about, reason, text).await;
    }

    /// The node, for events about it.
    #[must_use]
    pub fn node(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(self.node_name.clone()),
            // Kubelet's own events about a node have the same value, by which `kubectl describe` finds them.
            uid: Some(self.node_name.clone()),
            ..ObjectReference::default()
        }
    }

    async fn say(&self, kind: &str, about: ObjectReference, reason: &str, text: &str) {
        if let Err(error) = self.write(kind, &about, reason, text).await {
            let (kind, name) = (about.kind.unwrap_or_default(), about.name.unwrap_or_default());
            warn!(kind, name, reason, error = message(&error), "cannot write an event");
        }
    }

    async fn write(&self, kind: &str, about: &ObjectReference, reason: &str, text: &str) -> Result<(), kube::Error> {
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".into());
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let name = self.name_of(about, reason, text);
        let now = Time(Timestamp::now());
        let event = Event {
            metadata: ObjectMeta { name: Some(name.clone()), namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: about.clone(),
            reason: Some(reason.into()),
            message: Some(shortened(text, MESSAGE_BYTES_MAX)),
            type_: Some(kind.into()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now.clone()),
            source: Some(EventSource { component: Some(self.component.into()), host: Some(self.node_name.clone()) }),
            reporting_component: Some(self.component.into()),
            reporting_instance: Some(self.node_name.clone()),
            ..Event::default()
        };
        match events.create(&PostParams::default(), &event).await {
            Err(error) if is_conflict(&error) => {}
            other => return other.map(drop),
        }
        let count = events.get(&name).await?.count.unwrap_or(1).saturating_add(1);
        let again = json!({"count": count, "lastTimestamp": now});
        events.patch(&name, &PatchParams::default(), &Patch::Merge(again)).await.map(drop)
    }

    /// A name that is the same for the same event, so that the API server finds the event again.
    fn name_of(&self, about: &ObjectReference, reason: &str, text: &str) -> String {
        let mut hash = Sha256::new();
        for part in [about.uid.as_deref().unwrap_or_default(), self.component, &self.node_name, reason, text] {
            hash.update(part);
            hash.update([0]);
        }
        let digits: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name = shortened(about.name.as_deref().unwrap_or("unnamed"), NAME_BYTES_MAX - 1 - digits.len());
        // Each part of a name ends with a letter or a digit.
        format!("{}.{digits}", name.trim_end_matches(['-', '.']))
    }
}

fn shortened(text: &str, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_event_about_a_long_name_has_a_valid_name() {
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let events = Events::new(client, "aliquot", "n".into());
        let name_of = |name: &str| events.name_of(&pod_reference("default", name, "uid"), "Reason", "text");
        let digits = name_of("a").strip_prefix("a.").unwrap().to_owned();
        let name = |length: usize| "a".repeat(length);
        assert_eq!(name_of(&name(236)), format!("{}.{digits}", name(236)));
        assert_eq!(name_of(&name(253)), format!("{}.{digits}", name(236)));
        assert_eq!(name_of(&format!("{}-.b", name(235))), format!("{}.{digits}", name(235)));
    }
}
