//! Keeps the mirror's objects of one sort as the API server has them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use aliquot_api_server::{is_not_found, message};
use futures_util::{StreamExt, pin_mut};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::warn;

use crate::mirror::{Access, Mirror};
use crate::serve::Shared;

/// The API server ends a quiet watch after so many seconds, and the watch goes on from there. It is less than the
/// client waits for an answer.
pub(crate) const WATCH_SECONDS: u32 = 10;

/// How the objects of a sort get into the mirror.
pub(super) trait Sight: Send + Sync + 'static {
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;

    /// Whether the scheduler starts without the right to read these objects. Each sort says what happens without them.
    /// If this is `false`, the scheduler waits for the right, because it could decide wrongly without the objects.
    const STARTS_WITHOUT_RIGHT: bool = false;

    /// Only objects with such labels are watched; `None`: all.
    const SELECTOR: Option<&'static str> = None;

    /// The name of the sort, for messages.
    fn name(&self) -> String;
    /// The name by which the mirror knows an object; `None`: it has none.
    fn key(&self, object: &Self::Object) -> Option<String>;
    fn show(&self, object: Self::Object, own_name: &str, mirror: &mut Mirror);
    fn gone(&self, key: &str, mirror: &mut Mirror);
    /// All that the mirror shows of this sort.
    fn shown(&self, mirror: &Mirror) -> BTreeSet<String>;
    /// Tells the mirror whether it shows all objects of this sort, and if not, why.
    fn access(&self, _: Access, _: &mut Mirror) {}
}

/// Shows the objects of a sort in the mirror, and says in `access` whether it does. Ends when the API server has no
/// such resource; the mirror then still shows the objects that were known last.
pub(super) async fn follow<S: Sight>(
    sight: Arc<S>,
    objects: Api<S::Object>,
    shared: Arc<Shared>,
    access: watch::Sender<Option<Access>>,
) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let config = S::SELECTOR.into_iter().fold(config, |config, labels| config.labels(labels));
    let events = watcher(objects, config).default_backoff();
    pin_mut!(events);
    let mut listed = BTreeSet::new();
    let mut complaint = None;
    while let Some(event) = events.next().await {
        let error = match event {
            Ok(event) => {
                complaint = None;
                show(&*sight, event, &mut listed, &shared, &access);
                continue;
            }
            Err(error) => error,
        };
        if is_absent(&error) {
            return;
        }
        let is_refused = status_of(&error) == Some(403) && S::STARTS_WITHOUT_RIGHT && access.borrow().is_none();
        if is_refused {
            shared.change(|mirror| sight.access(Access::Forbidden, mirror));
            access.send_replace(Some(Access::Forbidden));
        }
        // The watch is tried again and again, but the same error is logged once.
        let text = said(&error);
        if complaint.as_ref() != Some(&text) {
            warn!(resource = sight.name(), error = text, "cannot watch; trying again");
            complaint = Some(text);
        }
    }
}

fn show<S: Sight>(
    sight: &S,
    event: Event<S::Object>,
    listed: &mut BTreeSet<String>,
    shared: &Shared,
    access: &watch::Sender<Option<Access>>,
) {
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => {
            listed.extend(sight.key(&object));
            shared.change(|mirror| sight.show(object, &shared.name, mirror));
        }
        Event::InitDone => {
            let listed = std::mem::take(listed);
            shared.change(|mirror| {
                for key in sight.shown(mirror).difference(&listed) {
                    sight.gone(key, mirror);
                }
                sight.access(Access::Read, mirror);
            });
            access.send_replace(Some(Access::Read));
        }
        Event::Apply(object) => shared.change(|mirror| sight.show(object, &shared.name, mirror)),
        Event::Delete(object) => {
            if let Some(key) = sight.key(&object) {
                shared.change(|mirror| sight.gone(&key, mirror));
            }
        }
    }
}

/// Removes all objects of a sort from the mirror, because the API server has no such resource any more.
pub(super) fn forget<S: Sight>(sight: &S, mirror: &mut Mirror) {
    for key in sight.shown(mirror) {
        sight.gone(&key, mirror);
    }
    sight.access(Access::Absent, mirror);
}

fn cause(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(error),
        _ => None,
    }
}

/// Whether the API server has no such resource.
pub(crate) fn is_absent(error: &watcher::Error) -> bool {
    status_of(error) == Some(404)
}

/// The HTTP status of the answer.
fn status_of(error: &watcher::Error) -> Option<u16> {
    match cause(error)? {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Why something cannot be watched, and what to do.
pub(crate) fn said(error: &watcher::Error) -> String {
    let Some(of) = cause(error) else { return error.to_string() };
    let hint = match status_of(error) {
        _ if is_not_found(of) => "; apply the scheduler's manifests, which define it",
        Some(403) => "; apply the scheduler's manifests, which give it the right",
        _ => "",
    };
    format!("{}{hint}", message(of))
}
