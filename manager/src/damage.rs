//! What is done about a region that is damaged: its slice gets nothing more, at once and until it is made anew.
//!
//! Its ledger may have become one in which there is room for everything, and a program that is started now may not find
//! what this manager looks at. So the limits become nothing, the arbiter forgets the slice, and where files are gone or
//! were replaced there is something by which the shim refuses.

use std::sync::Arc;

use tracing::{error, warn};

use crate::events::{Event, Events, Kind};
use crate::live::LiveSlice;
use crate::region::files::RegionDirs;
use crate::time_sharing::TimeSharing;

/// Looks for damage.
#[derive(Clone)]
pub(crate) struct DamageWatch {
    dirs: RegionDirs,
    time_sharing: Arc<TimeSharing>,
    events: Arc<Events>,
}

impl DamageWatch {
    /// One that takes damaged slices out of `time_sharing`, makes directories among `dirs`, and says so in `events`.
    #[must_use]
    pub(crate) fn new(dirs: RegionDirs, time_sharing: Arc<TimeSharing>, events: Arc<Events>) -> DamageWatch {
        DamageWatch { dirs, time_sharing, events }
    }

    /// Looks whether the region of `live` is damaged, and acts. Each time anew, also where damage is known: what can be
    /// put right is put right each time.
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

    /// Tells of words that the sweeps put right, once each time that there come to be some.
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

    /// Has a slice get nothing more, because `what` has happened to its region.
    pub(crate) fn found(&self, live: &LiveSlice, what: &str) {
        if live.note_damage(what) {
            warn!(slice = live.name, damage = what, "the region of a slice is damaged: the slice gets nothing more");
            let event = Event::of(Kind::SliceDamaged, format!("its region is damaged, it gets nothing more: {what}"));
            self.events.record(event.of_slice(&live.name));
            self.time_sharing.remove(live);
            for part in 0..live.region.device_count() {
                live.set_free(part, false);
            }
            // After the arbiter has let go of the gates.
            live.region.revoke();
        }
    }
}
