//! Watches: the changes of a resource's objects, as a stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Shared;
use super::form::Form;
use super::objects::Change;
use super::resource::Resource;
use super::selector::Selector;
use super::status::Failure;

/// The interval of bookmarks in a quiet watch. The real server sends one about every minute.
const BOOKMARKS: Duration = Duration::from_secs(2);

/// The parameters of a watch.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) resource: &'static Resource,
    pub(super) namespace: Option<String>,
    pub(super) selector: Selector,
    pub(super) form: Form,
    /// Changes after this version are sent.
    pub(super) version: u64,
    /// Objects that are sent first as if they were new, if the client has asked for that.
    pub(super) initial: Option<Vec<Value>>,
    pub(super) bookmarks: bool,
    pub(super) timeout: Duration,
}

type Sender = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

impl Watch {
    /// Sends changes until the client is gone, the time is over, or all watches must end.
    pub(super) async fn run(mut self, shared: Arc<Shared>, sender: Sender) {
        let mut changed = shared.objects.subscribe();
        let mut outage = shared.outages.subscribe();
        outage.mark_unchanged();
        if let Some(initial) = self.initial.take() {
            for object in initial {
                if !send(&sender, "ADDED", &self.form.event(object)).await {
                    return;
                }
            }
            let mut bookmark = self.bookmark();
            bookmark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
            if !send(&sender, "BOOKMARK", &self.form.event(bookmark)).await {
                return;
            }
        }
        let end = tokio::time::sleep(self.timeout);
        tokio::pin!(end);
        loop {
            let (changes, version): (Option<Vec<Change>>, u64) = {
                let objects = shared.objects.lock();
                let changes = objects.since(self.version, self.resource, self.namespace.as_deref());
                let changes = changes.map(|changes| changes.map(|(_, change)| change.clone()).collect());
                (changes, objects.version())
            };
            let Some(changes) = changes else {
                let message = format!("too old resource version: {} ({version})", self.version);
                let _ = send(&sender, "ERROR", &Failure::expired(message).to_json()).await;
                return;
            };
            for change in changes {
                if let Some((event, object)) = self.event(change)
                    && !send(&sender, event, &self.form.event(object)).await
                {
                    return;
                }
            }
            self.version = version;
            tokio::select! {
                changed = changed.changed() => if changed.is_err() { return },
                _ = outage.changed() => return,
                () = &mut end => return,
                () = sender.closed() => return,
                () = tokio::time::sleep(BOOKMARKS), if self.bookmarks => {
                    if !send(&sender, "BOOKMARK", &self.form.event(self.bookmark())).await {
                        return;
                    }
                }
            }
        }
    }

    /// The event of `change` for a client that sees only the selected objects.
    fn event(&self, change: Change) -> Option<(&'static str, Value)> {
        let selected =
            |object: &Option<Arc<Value>>| object.as_ref().is_some_and(|object| self.selector.selects(object));
        match (selected(&change.before), selected(&change.after)) {
            (false, true) => Some(("ADDED", Arc::unwrap_or_clone(change.after?))),
            (true, true) => Some(("MODIFIED", Arc::unwrap_or_clone(change.after?))),
            (true, false) => {
                let mut last = Arc::unwrap_or_clone(change.before?);
                last["metadata"]["resourceVersion"] = change.version.to_string().into();
                Some(("DELETED", last))
            }
            (false, false) => None,
        }
    }

    fn bookmark(&self) -> Value {
        json!({
            "apiVersion": self.resource.api_version(), "kind": self.resource.kind,
            "metadata": {"resourceVersion": self.version.to_string()},
        })
    }
}

/// Sends an event. Answers whether the client is still connected.
async fn send(sender: &Sender, event: &str, object: &Value) -> bool {
    let mut line = json!({"type": event, "object": object}).to_string();
    line.push('\n');
    sender.send(Ok(Frame::data(line.into()))).await.is_ok()
}
