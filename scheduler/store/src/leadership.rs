//! Whether a scheduler leads, and until when.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Tells whether this scheduler leads, and which schedulers share its database. All copies tell the same.
///
/// With SQLite the scheduler leads for as long as it lives, because no other process can open the file.
#[derive(Clone, Debug, Default)]
pub struct Leadership(Option<Arc<Mutex<Lease>>>);

#[derive(Debug)]
struct Lease {
    until: Instant,
    schedulers: Vec<String>,
}

impl Leadership {
    /// A leadership that ends at this time unless it is renewed.
    pub(crate) fn until(until: Instant) -> Self {
        Self(Some(Arc::new(Mutex::new(Lease { until, schedulers: Vec::new() }))))
    }

    /// Whether this scheduler leads. Once this is false, it must not do what only a leader may do.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|lease| Instant::now() < lease.lock().until)
    }

    /// The addresses of the schedulers that can lead this cluster, as far as they are known, each HOST:PORT.
    #[must_use]
    pub fn schedulers(&self) -> Vec<String> {
        self.0.as_ref().map(|lease| lease.lock().schedulers.clone()).unwrap_or_default()
    }

    /// Extends the leadership until this time.
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
