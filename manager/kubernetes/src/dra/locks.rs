//! Locks, so that each claim is worked on by one task at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::names::ClaimUid;

/// A lock for each claim that a task works on.
#[derive(Debug, Default)]
pub(super) struct Locks {
    by_uid: Mutex<BTreeMap<ClaimUid, Weak<AsyncMutex<()>>>>,
}

impl Locks {
    /// Waits until no task works on the claim, and keeps other tasks away while the guard lives.
    pub(super) async fn lock(&self, uid: &ClaimUid) -> OwnedMutexGuard<()> {
        self.of(uid).lock_owned().await
    }

    fn of(&self, uid: &ClaimUid) -> Arc<AsyncMutex<()>> {
        let mut by_uid = self.by_uid.lock();
        by_uid.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = by_uid.get(uid).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(AsyncMutex::new(()));
        by_uid.insert(uid.clone(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_who_works_at_the_same_claim_waits() {
        let locks = Locks::default();
        let (one, other) = (ClaimUid::parse("a").unwrap(), ClaimUid::parse("b").unwrap());
        let guard = locks.lock(&one).await;
        drop(locks.lock(&other).await);
        assert!(tokio::time::timeout(Duration::from_secs(1), locks.lock(&one)).await.is_err());
        drop(guard);
        drop(locks.lock(&one).await);
        drop(locks.lock(&other).await);
        assert_eq!(locks.by_uid.lock().len(), 1);
    }
}
