//! Which queues and scheduling policies there are, by name.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_api_server::Client;
use aliquot_scheduler_core::DEFAULT_QUEUE;
use futures_util::{StreamExt, pin_mut};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use parking_lot::RwLock;
use tracing::debug;

use crate::queue::Queue;
use crate::scheduling_policy::SchedulingPolicy;
use crate::watches::{WATCH_SECONDS, is_absent, queues_of_kai, said};

/// The names of all objects of a kind; `None`: they are not known yet.
type Names = Arc<RwLock<Option<BTreeSet<String>>>>;

/// The names that pods can give.
#[derive(Clone, Default)]
pub(super) struct Known {
    queues: Names,
    queues_of_kai: Names,
    policies: Names,
}

impl Known {
    #[cfg(test)]
    pub(super) fn of<const N: usize>(queues: [&str; N], policies: [&str; N]) -> Known {
        let names = |names: &[&str]| Arc::new(RwLock::new(Some(names.iter().map(|name| (*name).to_owned()).collect())));
        Known { queues: names(&queues), queues_of_kai: names(&[]), policies: names(&policies) }
    }

    /// Whether it is certain that there is no such queue.
    pub(super) fn lacks_queue(&self, name: &str) -> bool {
        name != DEFAULT_QUEUE && lacks(&self.queues, name) && lacks(&self.queues_of_kai, name)
    }

    /// Whether it is certain that there is no such policy.
    pub(super) fn lacks_policy(&self, name: &str) -> bool {
        lacks(&self.policies, name)
    }

    /// Follows what there is, for ever.
    pub(super) async fn watch(&self, client: Client) {
        let (queues, policies) = (ApiResource::erase::<Queue>(&()), ApiResource::erase::<SchedulingPolicy>(&()));
        tokio::join!(
            follow(Api::all_with(client.clone(), &queues), &self.queues),
            follow(Api::all_with(client.clone(), &queues_of_kai()), &self.queues_of_kai),
            follow(Api::all_with(client, &policies), &self.policies),
        );
    }
}

fn lacks(names: &Names, name: &str) -> bool {
    names.read().as_ref().is_some_and(|names| !names.contains(name))
}

async fn follow(objects: Api<PartialObjectMeta<DynamicObject>>, names: &Names) {
    let events = watcher(objects, watcher::Config::default().timeout(WATCH_SECONDS)).default_backoff();
    pin_mut!(events);
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.extend(object.metadata.name),
            Ok(Event::InitDone) => *names.write() = Some(std::mem::take(&mut listed)),
            Ok(Event::Apply(object)) => names.write().get_or_insert_default().extend(object.metadata.name),
            Ok(Event::Delete(object)) => {
                if let (Some(names), Some(name)) = (names.write().as_mut(), object.metadata.name) {
                    names.remove(&name);
                }
            }
            // Where the kind is not defined any more, its objects are gone, too.
            Err(error) if is_absent(&error) => *names.write() = Some(BTreeSet::new()),
            // Without the names only the warnings are missing.
            Err(error) => debug!(error = said(&error), "cannot watch what pods can name; trying again"),
        }
    }
}
