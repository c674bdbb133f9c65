//! Pods that wait for room on the node.
//!
//! Kube-scheduler counts the units of all devices of a node together, so it can send a container to a node where no
//! single device has room for it. That pod stays bound to its node, and would wait until others go. So a pod that waits
//! for long is evicted if a controller makes another one in its place, which can go to another node. From the first
//! such refusal on, the node offers only as much as fits on one device ([`Waits::are_split`]), until some part was
//! given back: otherwise the new pod would be sent here again. The node does not do so from the beginning, because a
//! pod fails if kubelet admits it when units have just been taken off the offer.
//!
//! Not every offer becomes smaller by that: those of HAMi and Volcano say only how many containers a device takes. So
//! for an hour no second pod of the same owner is evicted. A pod that would find no devices on the empty node does not
//! wait for room: it is not evicted, and the offer is not reduced for it. The offer is not reduced either for a pod for
//! which a scheduler has decided on devices: its refusal shows nothing about the other devices, and its scheduler does
//! not go by the offer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aliquot_node::{Consumer, Slice};
use tokio::time::Instant;

use crate::pod_resources::Holders;

/// The pods that wait for room, and since when each does.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The waiting pods, by UID.
    pods: BTreeMap<String, Waiting>,
    /// The slices that took the room when it was last found split.
    in_the_way: BTreeSet<String>,
}

/// A pod that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The container that found no room.
    pub(super) container: Consumer,
    /// The reason for the last refusal.
    pub(super) reason: String,
    since: Instant,
}

impl Waits {
    /// A container of this pod was refused for want of room.
    pub(super) fn refused(&self, pod_uid: &str, container: &Consumer, reason: String) {
        let mut state = self.lock();
        let waiting = state.pods.entry(pod_uid.to_owned());
        let waiting = waiting.or_insert_with(|| Waiting {
            container: container.clone(),
            reason: String::new(),
            since: Instant::now(),
        });
        waiting.reason = reason;
    }

    /// Notes that no device had room for a container, beside these slices.
    pub(super) fn found_split(&self, slices: &[Slice]) {
        self.lock().in_the_way = slices.iter().map(|slice| slice.content.name.clone()).collect();
    }

    /// A container of this pod has its slice.
    pub(super) fn served(&self, pod_uid: &str) {
        self.lock().pods.remove(pod_uid);
    }

    /// The pods that have waited for at least `patience`, by UID; each is returned once. Pods that kubelet does not
    /// know any more are forgotten.
    pub(super) fn for_long(&self, patience: Duration, holders: &Holders) -> BTreeMap<String, Waiting> {
        let known: BTreeSet<&str> = holders.recorded().iter().map(|recorded| recorded.pod_uid.as_str()).collect();
        let mut state = self.lock();
        state.pods.retain(|uid, _| known.contains(uid.as_str()));
        let all = std::mem::take(&mut state.pods);
        let (long, others) = all.into_iter().partition(|(_, waiting)| waiting.since.elapsed() >= patience);
        state.pods = others;
        long
    }

    /// Whether the devices' room was found too split for a container, and has not changed since.
    pub(super) fn are_split(&self, slices: &[Slice]) -> bool {
        let mut state = self.lock();
        let names: BTreeSet<&str> = slices.iter().map(|slice| slice.content.name.as_str()).collect();
        if !state.in_the_way.iter().all(|name| names.contains(name.as_str())) {
            state.in_the_way.clear();
        }
        !state.in_the_way.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plugin::test_node::{GIB, device, slice_of};
    use crate::pod_resources::Recorded;

    fn consumer() -> Consumer {
        Consumer { namespace: "default".into(), pod: "p".into(), container: "main".into() }
    }

    fn known(uids: &[&str]) -> Holders {
        let recorded =
            |uid: &&str| Recorded { pod_uid: (*uid).into(), container: "main".into(), devices: BTreeMap::new() };
        Holders::with_recorded(uids.iter().map(recorded).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_for_long_is_named_once_unless_he_was_served_or_is_gone() {
        let (waits, minute) = (Waits::default(), Duration::from_secs(60));
        for uid in ["waits", "served", "gone"] {
            waits.refused(uid, &consumer(), "first".into());
        }
        tokio::time::advance(minute / 2).await;
        waits.refused("waits", &consumer(), "last".into());
        waits.served("served");
        assert!(waits.for_long(minute, &known(&["waits", "served", "gone"])).is_empty());
        tokio::time::advance(minute / 2).await;
        let long = waits.for_long(minute, &known(&["waits", "served"]));
        let found: Vec<(&str, &str)> = long.iter().map(|(uid, it)| (uid.as_str(), it.reason.as_str())).collect();
        assert_eq!(found, [("waits", "last")]);
        assert!(waits.for_long(minute, &known(&["waits"])).is_empty());
    }

    #[test]
    fn room_is_split_from_a_refusal_until_a_slice_is_given_back() {
        let slices = ["a", "b"].map(|name| slice_of(name, &device(0, 16), 60, GIB));
        let waits = Waits::default();
        assert!(!waits.are_split(&slices));
        waits.found_split(&slices);
        assert!(waits.are_split(&slices));
        let more = [&slices[..], &[slice_of("c", &device(0, 16), 10, GIB)]].concat();
        assert!(waits.are_split(&more));
        assert!(!waits.are_split(&slices[..1]));
        // A later pod of the same name is another pod.
        assert!(!waits.are_split(&slices));
    }
}
