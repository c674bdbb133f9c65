//! Bounds the calls of each user: a token bucket for each, and a limit of open calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;

use crate::access::Identity;

/// How many calls a user may make, and how many connections may exist. Calls of nodes are not limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Calls in each second, on average over a long time.
    pub calls_per_second: u32,
    /// Calls that may come at once after a time without calls.
    pub calls_burst: u32,
    /// The most open calls at a time. A watched job and a followed log are open calls.
    pub open_calls: u32,
    /// Connections from other machines, of users, nodes and schedulers together.
    pub connections: u32,
    /// Connections of one user or node of another machine.
    pub connections_per_caller: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_per_second: 500,
            calls_burst: 5000,
            open_calls: 1000,
            connections: 16_384,
            connections_per_caller: 64,
        }
    }
}

impl Limits {
    /// Checks that the values can be used.
    ///
    /// # Errors
    /// A sentence with the wrong value, and what to do.
    pub(crate) fn check(self) -> Result<(), String> {
        let values = [
            ("calls_per_second", self.calls_per_second),
            ("calls_burst", self.calls_burst),
            ("open_calls", self.open_calls),
            ("connections", self.connections),
            ("connections_per_caller", self.connections_per_caller),
        ];
        match values.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(format!("limits.{key} 0 would refuse all callers; write at least 1")),
            None => Ok(()),
        }
    }
}

/// Above this number of users, the limiter forgets those that have no open call and a full bucket.
const KEPT_MAX: usize = 4096;
/// Of refusals that follow each other, one in this time is noted.
const NOTED_MS: u64 = 60_000;
/// The calls of strangers that are noted at once, and then in each second. The number is small, because any program
/// that reaches the port can make such calls.
const STRANGERS_BURST: u64 = 100;
const STRANGERS_PER_SECOND: u64 = 1;
/// One call in the unit of buckets, thousandths of a call. A bucket gains `calls_per_second` units in a millisecond.
const CALL: u64 = 1000;

/// Why a call is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Exceeded {
    pub(crate) why: String,
    pub(crate) retry_ms: u64,
    /// Whether the refusal is noted in the log. Refusals that follow soon are not, so that a caller cannot fill the
    /// log.
    pub(crate) is_noted: bool,
}

/// Bounds the calls of each user. All unknown callers share one bucket. All copies share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    users: Arc<Mutex<BTreeMap<Option<Identity>, Bucket>>>,
    strangers: Arc<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    /// The content of the bucket in thousandths of a call.
    level: u64,
    filled_ms: u64,
    open: u32,
    noted_ms: Option<u64>,
}

/// Counts a call as open, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenCall {
    limiter: Limiter,
    user: Option<Identity>,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(bucket) = self.limiter.users.lock().get_mut(&self.user) {
            bucket.open = bucket.open.saturating_sub(1);
        }
    }
}

impl Limiter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, users: Arc::default(), strangers: Arc::new(Mutex::new(Bucket::full(STRANGERS_BURST * CALL, 0))) }
    }

    /// Whether the call of an unknown or removed caller is noted in a log. The number is bounded, so that such callers
    /// cannot fill it.
    pub(crate) fn notes_stranger(&self, now_ms: u64) -> bool {
        self.strangers.lock().take(now_ms, STRANGERS_PER_SECOND, STRANGERS_BURST * CALL).is_ok()
    }

    /// Lets a call through, or says why it is refused.
    pub(crate) fn enter(&self, user: Option<&Identity>, now_ms: u64) -> Result<OpenCall, Exceeded> {
        let Limits { calls_per_second, calls_burst, open_calls, .. } = self.limits;
        let (rate, full) = (u64::from(calls_per_second), u64::from(calls_burst) * CALL);
        let mut users = self.users.lock();
        if users.len() >= KEPT_MAX {
            users.retain(|_, bucket| bucket.open > 0 || bucket.at(now_ms, rate, full) < full);
        }
        let bucket = users.entry(user.cloned()).or_insert(Bucket::full(full, now_ms));
        if bucket.open >= open_calls {
            let why = format!(
                "{open_calls} calls of this user are under way, such as jobs that are watched and logs that are followed; \
                 end some; the scheduler's configuration bounds them for each user: limits.open_calls"
            );
            return Err(bucket.exceeded(why, 1000, now_ms));
        }
        if let Err(retry_ms) = bucket.take(now_ms, rate, full) {
            let why = format!(
                "these are more than {calls_per_second} calls a second; try again in {retry_ms} ms; the scheduler's \
                 configuration bounds the calls of each user: limits.calls_per_second"
            );
            return Err(bucket.exceeded(why, retry_ms, now_ms));
        }
        bucket.open += 1;
        Ok(OpenCall { limiter: self.clone(), user: user.cloned() })
    }
}

impl Bucket {
    fn full(level: u64, filled_ms: u64) -> Self {
        Self { level, filled_ms, open: 0, noted_ms: None }
    }

    /// Takes one call out of the bucket, or says in how many milliseconds there will be one.
    fn take(&mut self, now_ms: u64, rate: u64, full: u64) -> Result<(), u64> {
        self.level = self.at(now_ms, rate, full);
        self.filled_ms = self.filled_ms.max(now_ms);
        match self.level.checked_sub(CALL) {
            Some(left) => {
                self.level = left;
                Ok(())
            }
            None => Err((CALL - self.level).div_ceil(rate)),
        }
    }

    fn at(&self, now_ms: u64, rate: u64, full: u64) -> u64 {
        let gained = now_ms.saturating_sub(self.filled_ms).saturating_mul(rate);
        self.level.saturating_add(gained).min(full)
    }

    fn exceeded(&mut self, why: String, retry_ms: u64, now_ms: u64) -> Exceeded {
        let is_noted = self.noted_ms.is_none_or(|noted_ms| now_ms >= noted_ms.saturating_add(NOTED_MS));
        if is_noted {
            self.noted_ms = Some(now_ms);
        }
        Exceeded { why, retry_ms, is_noted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { calls_per_second: 10, calls_burst: 3, open_calls: 2, connections: 9, connections_per_caller: 9 };

    fn ada() -> Identity {
        Identity::Remote("ada".to_owned())
    }

    #[test]
    fn after_the_burst_calls_come_at_the_rate() {
        let (limiter, ada) = (Limiter::new(LIMITS), ada());
        let call = |now_ms| limiter.enter(Some(&ada), now_ms).map(drop);
        for _ in 0..3 {
            call(0).unwrap();
        }
        let refused = call(0).unwrap_err();
        assert_eq!((refused.retry_ms, refused.is_noted), (100, true));
        assert!(refused.why.contains("try again in 100 ms"), "{}", refused.why);
        let refused = call(99).unwrap_err();
        assert_eq!((refused.retry_ms, refused.is_noted), (1, false), "one of them is noted in a minute");
        call(100).unwrap();
        call(100).unwrap_err();
        assert!(call(50).unwrap_err().retry_ms > 0, "time does not run backwards");
        for _ in 0..3 {
            call(1_000_000).unwrap();
        }
        assert!(call(1_000_000).unwrap_err().is_noted);
    }

    #[test]
    fn users_do_not_use_up_what_is_for_others() {
        let limiter = Limiter::new(LIMITS);
        for _ in 0..3 {
            drop(limiter.enter(Some(&ada()), 0).unwrap());
        }
        limiter.enter(Some(&ada()), 0).unwrap_err();
        limiter.enter(Some(&Identity::Local(7)), 0).unwrap();
        limiter.enter(None, 0).unwrap();
    }

    #[test]
    fn calls_under_way_are_bounded_until_they_end() {
        let (limiter, ada) = (Limiter::new(LIMITS), ada());
        let first = limiter.enter(Some(&ada), 0).unwrap();
        let _second = limiter.enter(Some(&ada), 0).unwrap();
        let refused = limiter.enter(Some(&ada), 0).unwrap_err();
        assert!(refused.why.contains("limits.open_calls"), "{}", refused.why);
        drop(first);
        limiter.enter(Some(&ada), 0).unwrap();
    }

    #[test]
    fn users_who_do_nothing_are_forgotten() {
        let limiter = Limiter::new(LIMITS);
        let _open = limiter.enter(Some(&ada()), 0).unwrap();
        for uid in 0..10_000 {
            drop(limiter.enter(Some(&Identity::Local(uid)), u64::from(uid) * 1000).unwrap());
        }
        let users = limiter.users.lock();
        assert!(users.len() <= KEPT_MAX && users.contains_key(&Some(ada())), "{}", users.len());
    }

    #[test]
    fn strangers_do_not_fill_a_log() {
        let limiter = Limiter::new(LIMITS);
        assert_eq!((0..1000).filter(|_| limiter.notes_stranger(5_000_000)).count(), 100);
        assert!(limiter.notes_stranger(5_001_000) && !limiter.notes_stranger(5_001_000));
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        assert!(Limits { open_calls: 0, ..LIMITS }.check().unwrap_err().contains("limits.open_calls 0"));
        Limits::default().check().unwrap();
    }
}
