//! Until when a scheduler may go on.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Says whether this scheduler leads, and which schedulers there are. Copies say the same.
///
/// With SQLite it leads for as long as it lives, because nobody else can open the file.
#[derive(Clone, Debug, Default)]
pub struct Leadership(Option<Arc<Mutex<Lease>>>);

#[derive(Debug)]
struct Lease {
    until: Instant,
    schedulers: Vec<String>,
}

impl Leadership {
    /// One that ends at this time, if it is not renewed.
    pub(crate) fn until(until: Instant) -> Self {
        Self(Some(Arc::new(Mutex::new(Lease { until, schedulers: Vec::new() }))))
    }

    /// Whether no other scheduler can lead yet. Nothing that only a leader may say is said after this is false.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|lease| Instant::now() < lease.lock().until)
    }

    /// Where the schedulers are that can lead this cluster, as far as that is known: HOST:PORT each.
    #[must_use]
    pub fn schedulers(&self) -> Vec<String> {
        self.0.as_ref().map(|lease| lease.lock().schedulers.clone()).unwrap_or_default()
    }

    /// Lets it go on until this time.
    pub(crate) fn renew(&self, until: Instant, schedulers: Vec<String>) {
        if let Some(lease) = &self.0 {
            *lease.lock() = Lease { until, schedulers };
        }
    }

    /// Ends the lease now, because it was lost or is given up.
    pub(crate) fn end(&self) {
        if let Some(lease) = &self.0 {
            lease.lock().until = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_ends_when_its_time_is_over_or_it_is_lost() {
        let leadership = Leadership::until(Instant::now() + Duration::from_secs(3600));
        assert!(leadership.holds());
        leadership.end();
        assert!(!leadership.clone().holds(), "all copies know it");
        assert!(Leadership::default().holds());
        assert!(!Leadership::until(Instant::now()).holds());
    }
}
