//! Decides when a device counts as broken, and when it counts as healthy again. Pure: the caller passes in time and
//! driver answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::inventory::{DeviceUuid, Health};

/// After a critical error a device must answer this long without a further error before new slices may use it. The time
/// counts and not the number of answers, because devices are asked for many reasons.
const TIME_TO_RECOVER: Duration = Duration::from_secs(30);

/// The last critical error of each device that has not recovered from it.
#[derive(Debug, Default)]
pub(crate) struct HealthWatch {
    errors: BTreeMap<DeviceUuid, CriticalError>,
}

/// A device's answer to a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The device answers, and the driver requests no recovery action.
    Well,
    /// The device answers, but the driver requests this recovery action before anything new is started on it.
    WantsRecovery(String),
    /// The device does not answer, or only with this error.
    Silence(String),
}

#[derive(Debug)]
struct CriticalError {
    xid: u64,
    /// When it was reported, or when the device was last found unhealthy after it.
    seen: Instant,
}

impl HealthWatch {
    /// Records that the driver reported error `xid` on a device. Returns whether it is an error of the device itself.
    pub(crate) fn xid(&mut self, uuid: &DeviceUuid, xid: u64, now: Instant) -> bool {
        let is_of_device = !is_of_the_program(xid);
        if is_of_device {
            self.errors.insert(uuid.clone(), CriticalError { xid, seen: now });
        }
        is_of_device
    }

    /// Records a device's answer. Returns its health now.
    pub(crate) fn asked(&mut self, uuid: &DeviceUuid, answer: Answer, now: Instant) -> Health {
        let error = self.errors.get_mut(uuid);
        let reason = match answer {
            Answer::Well => None,
            Answer::WantsRecovery(action) => Some(match &error {
                Some(CriticalError { xid, .. }) => {
                    format!("the driver wants {action}, after the critical error XID {xid}")
                }
                None => format!("the driver wants {action}"),
            }),
            Answer::Silence(reason) => Some(format!("the device does not answer: {reason}")),
        };
        if let Some(reason) = reason {
            error.into_iter().for_each(|error| error.seen = now);
            return Health::Unhealthy { reason };
        }
        match error {
            Some(CriticalError { xid, seen }) if now.saturating_duration_since(*seen) < TIME_TO_RECOVER => {
                Health::Unhealthy { reason: format!("the driver reported the critical error XID {xid}") }
            }
            _ => {
                self.errors.remove(uuid);
                Health::Healthy
            }
        }
    }
}

/// Errors that a program causes on a sound device: NVIDIA's list of XIDs calls them user application errors.
fn is_of_the_program(xid: u64) -> bool {
    matches!(xid, 13 | 31 | 43 | 45 | 68 | 109)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid() -> DeviceUuid {
        DeviceUuid::new("GPU-0")
    }

    fn lost() -> Answer {
        Answer::Silence("GPU is lost".into())
    }

    fn reason(health: Health) -> String {
        let Health::Unhealthy { reason } = health else { panic!("it is healthy") };
        reason
    }

    #[test]
    fn a_silent_device_is_unhealthy_until_it_answers() {
        let (mut watch, now) = (HealthWatch::default(), Instant::now());
        assert_eq!(watch.asked(&uuid(), Answer::Well, now), Health::Healthy);
        assert!(reason(watch.asked(&uuid(), lost(), now)).contains("GPU is lost"));
        assert_eq!(watch.asked(&uuid(), Answer::Well, now), Health::Healthy);
    }

    #[test]
    fn after_a_critical_error_a_device_must_answer_for_a_while() {
        let (mut watch, now) = (HealthWatch::default(), Instant::now());
        watch.xid(&uuid(), 48, now);
        for seconds in [0, 0, 0, 0, 0, 0, 0, 10, 29] {
            let health = watch.asked(&uuid(), Answer::Well, now + Duration::from_secs(seconds));
            assert!(reason(health).contains("XID 48"));
        }
        assert_eq!(watch.asked(&uuid(), Answer::Well, now + TIME_TO_RECOVER), Health::Healthy);
    }

    #[test]
    fn the_time_begins_anew_with_another_error_and_with_silence() {
        let (mut watch, begin) = (HealthWatch::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        watch.xid(&uuid(), 48, at(0));
        watch.xid(&uuid(), 79, at(20));
        assert!(reason(watch.asked(&uuid(), Answer::Well, at(40))).contains("XID 79"));
        assert!(reason(watch.asked(&uuid(), lost(), at(45))).contains("GPU is lost"));
        assert!(reason(watch.asked(&uuid(), Answer::Well, at(70))).contains("XID 79"));
        assert_eq!(watch.asked(&uuid(), Answer::Well, at(75)), Health::Healthy);
    }

    #[test]
    fn a_device_is_unhealthy_as_long_as_the_driver_wants_a_recovery() {
        let (mut watch, begin) = (HealthWatch::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let reset = || Answer::WantsRecovery("a reset of the GPU".into());
        assert_eq!(reason(watch.asked(&uuid(), reset(), at(0))), "the driver wants a reset of the GPU");
        assert_eq!(watch.asked(&uuid(), Answer::Well, at(1)), Health::Healthy);
        watch.xid(&uuid(), 95, at(10));
        let both = "the driver wants a reset of the GPU, after the critical error XID 95";
        assert_eq!(reason(watch.asked(&uuid(), reset(), at(10))), both);
        assert_eq!(reason(watch.asked(&uuid(), reset(), at(1000))), both);
        assert!(reason(watch.asked(&uuid(), Answer::Well, at(1029))).contains("XID 95"));
        assert_eq!(watch.asked(&uuid(), Answer::Well, at(1030)), Health::Healthy);
    }

    #[test]
    fn a_program_s_own_error_is_no_error_of_the_device_and_hides_none() {
        let (mut watch, now) = (HealthWatch::default(), Instant::now());
        for xid in [13, 31, 43, 45, 68, 109] {
            assert!(!watch.xid(&uuid(), xid, now));
            assert_eq!(watch.asked(&uuid(), Answer::Well, now), Health::Healthy);
        }
        assert!(watch.xid(&uuid(), 79, now));
        assert!(!watch.xid(&uuid(), 45, now));
        assert!(reason(watch.asked(&uuid(), Answer::Well, now)).contains("XID 79"));
    }
}
