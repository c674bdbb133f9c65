//! Reports on claims for which pods of other schedulers wait: what is free on which devices, and what comes nearest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::Events;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::{Instant, interval};

use crate::lease::Fence;
use crate::mirror::{Looked, Shortage};
use crate::serve::Shared;

/// The reason of these events.
const REASON: &str = "DevicesNotFree";
/// Time between two looks. A claim is reported only if it waits at two looks in a row: after one look it may be about
/// to be allocated.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two changes of the report on one claim, at least.
const PAUSE: Duration = Duration::from_secs(30);
/// Claims that are reported after one look, at most.
const AT_A_LOOK: usize = 100;

/// What was said of a claim, and when.
type Said = Option<(Instant, String)>;

/// Looks for as long as this replica leads.
pub(crate) async fn run(shared: Arc<Shared>, events: Events) {
    let mut looks = interval(LOOK);
    let (mut waiting, mut looked) = (BTreeMap::new(), Looked::default());
    loop {
        looks.tick().await;
        if shared.fence.left().is_none() {
            continue;
        }
        let shortages = shared.read(|mirror| mirror.shortages(&mut looked));
        for shortage in news(&mut waiting, shortages).into_iter().take(AT_A_LOOK) {
            tell(&shared.fence, &events, &shortage).await;
            waiting.insert(shortage.uid, Some((Instant::now(), shortage.text)));
        }
    }
}

/// The reports that are due now. `waiting` has the claims that waited at the last look, and then those that wait now.
fn news(waiting: &mut BTreeMap<String, Said>, shortages: Vec<Shortage>) -> Vec<Shortage> {
    let before = std::mem::take(waiting);
    let mut news = Vec::new();
    for shortage in shortages {
        let known = before.get(&shortage.uid);
        waiting.insert(shortage.uid.clone(), known.cloned().flatten());
        let is_due = known
            .is_some_and(|said| said.as_ref().is_none_or(|(at, text)| *text != shortage.text && at.elapsed() >= PAUSE));
        if is_due {
            news.push(shortage);
        }
    }
    news
}

async fn tell(fence: &Fence, events: &Events, of: &Shortage) {
    fence.within(events.warn(reference(of), REASON, &of.text)).await;
}

fn reference(of: &Shortage) -> ObjectReference {
    ObjectReference {
        api_version: Some("resource.k8s.io/v1".into()),
        kind: Some("ResourceClaim".into()),
        namespace: Some(of.namespace.clone()),
        name: Some(of.name.clone()),
        uid: Some(of.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;
    use crate::played::{self, Call};

    fn shortage(uid: &str, text: &str) -> Shortage {
        Shortage { namespace: "default".into(), name: uid.into(), uid: uid.into(), text: text.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_said_after_the_end_of_the_lease() {
        let fence = Fence::until(Instant::now() + Duration::from_secs(3));
        let calls: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let seen = Arc::clone(&calls);
        // The API server does not answer.
        let client = played::client(move |_: Call| {
            seen.lock().push(Instant::now());
            std::future::pending()
        });
        let events = Events::new(client, "aliquot-scheduler", "replica-1".into());
        for uid in ["a", "b"] {
            let told = timeout(Duration::from_secs(60), tell(&fence, &events, &shortage(uid, "x"))).await;
            assert!(told.is_ok(), "{uid}");
        }
        assert_eq!(calls.lock().len(), 1);
    }

    #[test]
    fn a_claim_is_spoken_of_when_it_waits_for_long() {
        let mut waiting = BTreeMap::new();
        assert_eq!(news(&mut waiting, vec![shortage("a", "x")]), []);
        assert_eq!(news(&mut waiting, vec![]), [], "it was allocated");
        assert_eq!(news(&mut waiting, vec![shortage("a", "x"), shortage("b", "x")]), []);
        let now = news(&mut waiting, vec![shortage("a", "x")]);
        assert_eq!(now, [shortage("a", "x")]);
        waiting.insert("a".into(), Some((Instant::now(), "x".into())));
        assert_eq!(news(&mut waiting, vec![shortage("a", "x")]), [], "it was said");
        assert_eq!(news(&mut waiting, vec![shortage("a", "y")]), [], "not so soon again");
        let long_ago = Instant::now().checked_sub(PAUSE).expect("this machine runs for longer");
        waiting.insert("a".into(), Some((long_ago, "x".into())));
        assert_eq!(news(&mut waiting, vec![shortage("a", "x")]), [], "nothing new");
        assert_eq!(news(&mut waiting, vec![shortage("a", "y")]), [shortage("a", "y")]);
    }
}
