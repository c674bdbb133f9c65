//! Decides when a device counts as broken, and when it counts as healthy again. Pure: the caller passes in time and
//! driver answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::inventory::{DeviceUuid, Health};

/// A device with a problem must answer this long without a further error before new slices may use it. Otherwise a
/// device that comes and goes would be used and taken back with every look. The time counts and not the number of
/// answers, because devices are asked for many reasons.
const TIME_TO_RECOVER: Duration = Duration::from_secs(30);

/// The last trouble of each device that has not recovered from it.
#[derive(Debug, Default)]
pub(crate) struct HealthWatch {
    troubles: BTreeMap<DeviceUuid, Trouble>,
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
struct Trouble {
    cause: Cause,
    /// When the device last had a problem.
    seen: Instant,
}

#[derive(Debug)]
enum Cause {
    /// A critical error was reported. Other errors or wrong answers may have come before it.
    Xid(u64),
    /// The device did not answer well, for this reason.
    Answer(String),
}

impl Cause {
    /// Why the device is not given out although it answers well now.
    fn reason(&self) -> String {
        match self {
            Cause::Xid(xid) => format!("the driver reported the critical error XID {xid}"),
            Cause::Answer(reason) => {
                format!("it is well, but was not less than {} seconds ago: {reason}", TIME_TO_RECOVER.as_secs())
            }
        }
    }
}

impl HealthWatch {
    /// Records that the driver reported error `xid` on a device. Returns whether it is an error of the device itself.
    pub(crate) fn xid(&mut self, uuid: &DeviceUuid, xid: u64, now: Instant) -> bool {
        let is_of_device = !is_of_the_program(xid);
        if is_of_device {
            self.troubles.insert(uuid.clone(), Trouble { cause: Cause::Xid(xid), seen: now });
        }
        is_of_device
    }

    /// Records a device's answer. Returns its health now.
    pub(crate) fn asked(&mut self, uuid: &DeviceUuid, answer: Answer, now: Instant) -> Health {
        let trouble = self.troubles.get_mut(uuid);
        let reason = match answer {
            Answer::Well => {
                return match trouble {
                    Some(Trouble { cause, seen }) if now.saturating_duration_since(*seen) < TIME_TO_RECOVER => {
                        Health::Unhealthy { reason: cause.reason() }
                    }
                    _ => {
                        self.troubles.remove(uuid);
                        Health::Healthy
                    }
                };
            }
            Answer::WantsRecovery(action) => match &trouble {
                Some(Trouble { cause: Cause::Xid(xid), .. }) => {
                    format!("the driver wants {action}, after the critical error XID {xid}")
                }
                _ => format!("the driver wants {action}"),
            },
            Answer::Silence(reason) => format!("the device does not answer: {reason}"),
        };
        match trouble {
            Some(trouble) => {
                trouble.seen = now;
                if let Cause::Answer(last) = &mut trouble.cause {
                    last.clone_from(&reason);
                }
            }
            None => {
                let cause = Cause::Answer(reason.clone());
                self.troubles.insert(uuid.clone(), Trouble { cause, seen: now });
            }
        }
        Health::Unhealthy { reason }
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
    fn a_device_that_comes_and_goes_is_unhealthy_until_it_has_answered_for_a_while() {
        let (mut watch, begin) = (HealthWatch::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(watch.asked(&uuid(), Answer::Well, at(0)), Health::Healthy);
        for seconds in [0, 10, 20, 40] {
            assert_eq!(reason(watch.asked(&uuid(), lost(), at(seconds))), "the device does not answer: GPU is lost");
            let answers = watch.asked(&uuid(), Answer::Well, at(seconds + 5));
            let expected = "it is well, but was not less than 30 seconds ago: the device does not answer: GPU is lost";
            assert_eq!(reason(answers), expected);
        }
        assert!(reason(watch.asked(&uuid(), Answer::Well, at(69))).contains("GPU is lost"));
        assert_eq!(watch.asked(&uuid(), Answer::Well, at(70)), Health::Healthy);
        assert_eq!(watch.asked(&uuid(), Answer::Well, at(71)), Health::Healthy);
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
        assert!(reason(watch.asked(&uuid(), Answer::Well, at(1))).contains("wants a reset of the GPU"));
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
