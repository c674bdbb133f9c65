//! Handles damaged regions: a slice with a damaged region gets nothing more until it is made anew.
//!
//! The damaged ledger may appear to have room for everything, and a newly started program may see other files than this
//! manager. So the limits become 0 and the arbiter forgets the slice. Where files are gone or were replaced, the watch
//! makes a *closed directory*, which makes the shim refuse.

use std::sync::Arc;

use tracing::{error, warn};

use crate::events::{Event, Events, Kind};
use crate::live::LiveSlice;
use crate::region::files::RegionDirs;
use crate::time_sharing::TimeSharing;

/// Watches regions for damage.
#[derive(Clone)]
pub(crate) struct DamageWatch {
    dirs: RegionDirs,
    time_sharing: Arc<TimeSharing>,
    events: Arc<Events>,
}

impl DamageWatch {
    /// A watch that removes damaged slices from `time_sharing`, makes closed directories among `dirs`, and records
    /// events in `events`.
    #[must_use]
    pub(crate) fn new(dirs: RegionDirs, time_sharing: Arc<TimeSharing>, events: Arc<Events>) -> DamageWatch {
        DamageWatch { dirs, time_sharing, events }
    }

    /// Checks the region of `live` for damage, and acts on it. It does so on each call, also if the damage is known
    /// already: each call repairs what can be repaired.
    pub(crate) fn look(&self, live: &LiveSlice) {
        let is_leaving = live.is_leaving();
        if *is_leaving {
            return;
        }
        let displacement = live.region.displacement();
        if displacement.is_some() {
            live.region.revoke();
            let shim = live.region.shim_path().file_name().unwrap_or_default();
            if let Err(error) = self.dirs.make_closed(live.id, &live.users(), shim)
                && live.damage().is_none()
            {
                error!(slice = live.name, %error, "cannot close the region of a damaged slice to new programs");
            }
        }
        if let Some(what) = displacement.or_else(|| live.region.damage()) {
            self.found(live, &what);
        } else {
            self.note_implausible(live);
        }
    }

    /// Reports words of the ledger that the sweeps have corrected, once for each time that they appear.
    fn note_implausible(&self, live: &LiveSlice) {
        let what = live.region.implausible();
        if live.note_implausible(what.is_some())
            && let Some(what) = what
        {
            warn!(slice = live.name, what, "words of a ledger were overwritten, and are put right");
            let event = Event::of(Kind::SliceDamaged, format!("words of its ledger are put right: {what}"));
            self.events.record(event.of_slice(&live.name));
        }
    }

    /// Cuts the slice off, because `what` has happened to its region.
    pub(crate) fn found(&self, live: &LiveSlice, what: &str) {
        if live.note_damage(what) {
            warn!(slice = live.name, damage = what, "the region of a slice is damaged: the slice gets nothing more");
            let event = Event::of(Kind::SliceDamaged, format!("its region is damaged, it gets nothing more: {what}"));
            self.events.record(event.of_slice(&live.name));
            self.time_sharing.remove(live);
            for part in 0..live.region.device_count() {
                live.set_free(part, false);
            }
            // After the arbiter has released the gates.
            live.region.revoke();
        }
    }
}
