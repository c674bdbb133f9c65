//! When a device is taken for broken, and when for whole again. No clock and no driver: both are told.

use std::collections::BTreeMap;

use crate::inventory::{DeviceUuid, Health};

/// A device with a critical error must answer this many times in a row before it is given out again.
const ANSWERS_TO_RECOVER: u32 = 6;

/// What has been seen of the devices so far.
#[derive(Debug, Default)]
pub(crate) struct HealthWatch {
    devices: BTreeMap<DeviceUuid, Record>,
}

#[derive(Debug, Default)]
struct Record {
    xid: Option<u64>,
    answers_since_xid: u32,
}

impl HealthWatch {
    /// The driver reported error `xid` on a device.
    pub(crate) fn xid(&mut self, uuid: &DeviceUuid, xid: u64) {
        if is_of_the_program(xid) {
            return;
        }
        *self.devices.entry(uuid.clone()).or_default() = Record { xid: Some(xid), answers_since_xid: 0 };
    }

    /// A device was asked, and answered or gave the error `failure`. Returns its health now.
    pub(crate) fn asked(&mut self, uuid: &DeviceUuid, failure: Option<String>) -> Health {
        let record = self.devices.entry(uuid.clone()).or_default();
        if let Some(reason) = failure {
            record.answers_since_xid = 0;
            return Health::Unhealthy { reason: format!("the device does not answer: {reason}") };
        }
        record.answers_since_xid = record.answers_since_xid.saturating_add(1);
        match record.xid {
            Some(xid) if record.answers_since_xid < ANSWERS_TO_RECOVER => {
                Health::Unhealthy { reason: format!("the driver reported the critical error XID {xid}") }
            }
            _ => {
                record.xid = None;
                Health::Healthy
            }
        }
    }
}

/// Errors that a program makes on a sound device: NVIDIA's list of XIDs calls them user application errors.
fn is_of_the_program(xid: u64) -> bool {
    matches!(xid, 13 | 31 | 43 | 45 | 68 | 109)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid() -> DeviceUuid {
        DeviceUuid::new("GPU-0")
    }

    #[test]
    fn a_silent_device_is_unhealthy_until_it_answers() {
        let mut watch = HealthWatch::default();
        assert_eq!(watch.asked(&uuid(), None), Health::Healthy);
        let Health::Unhealthy { reason } = watch.asked(&uuid(), Some("GPU is lost".into())) else { panic!() };
        assert!(reason.contains("GPU is lost"));
        assert_eq!(watch.asked(&uuid(), None), Health::Healthy);
    }

    #[test]
    fn after_a_critical_error_it_must_answer_for_a_while() {
        let mut watch = HealthWatch::default();
        watch.xid(&uuid(), 79);
        for _ in 1..ANSWERS_TO_RECOVER {
            let Health::Unhealthy { reason } = watch.asked(&uuid(), None) else { panic!() };
            assert!(reason.contains("XID 79"));
        }
        assert_eq!(watch.asked(&uuid(), None), Health::Healthy);
    }

    #[test]
    fn a_program_s_own_error_is_no_error_of_the_device() {
        let mut watch = HealthWatch::default();
        watch.xid(&uuid(), 31);
        assert_eq!(watch.asked(&uuid(), None), Health::Healthy);
    }
}
