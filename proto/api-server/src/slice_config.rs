//! The opaque parameters of `gpu.aliquot.dev`, by which a claim or a device class configures its slice beyond the
//! amounts.
//!
//! ```yaml
//! apiVersion: gpu.aliquot.dev/v1alpha1
//! kind: SliceConfig
//! coreLimitPercent: 80
//! priorityClass: latency-critical
//! auditPolicy: stop
//! hostMemoryLimit: 4Gi
//! ```

use aliquot_dialects::quantity;
use serde::Deserialize;
use serde_json::Value;

/// The driver's name, which is also the domain of its devices' attributes and capacities.
pub const DRIVER: &str = "gpu.aliquot.dev";

/// The only supported version and kind.
const API_VERSION: &str = "gpu.aliquot.dev/v1alpha1";
const KIND: &str = "SliceConfig";

/// The order in which slices get a device's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityClass {
    /// Before the other classes, within its request.
    LatencyCritical,
    /// After `latency-critical`, and before `batch`.
    Standard,
    /// After the other classes, for work whose results are not awaited.
    Batch,
}

/// What happens to processes that bypass the slice. The stricter policy is the greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditPolicy {
    /// They are reported, and go on running.
    Report,
    /// They are ended, and reported.
    Stop,
}

/// The parameters of a slice; `None` stands for a value that is not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceConfig {
    /// The percent of each device's time that is never exceeded. The allocated share is guaranteed. `None`: the
    /// allocated share is also the limit.
    pub core_limit_percent: Option<u32>,
    /// The order in which the slice gets a device's time.
    pub priority_class: Option<PriorityClass>,
    /// What happens to processes that bypass the slice.
    pub audit_policy: Option<AuditPolicy>,
    /// The limit of page-locked host memory in bytes; 0: no limit.
    pub host_memory_limit_bytes: Option<u64>,
}

/// Why the parameters are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceConfigError {
    /// The parameters are of another version or kind.
    #[error("the parameters for {DRIVER} have {key} {found:?}; it must be {expected:?}")]
    OtherKind {
        /// The field's key: `apiVersion` or `kind`.
        key: &'static str,
        /// The value that was given.
        found: String,
        /// The only value that is supported.
        expected: &'static str,
    },
    /// A field that does not exist, or a value that does not fit.
    #[error("in the parameters for {DRIVER}, {path}: {message}")]
    Field {
        /// The path of the field.
        path: String,
        /// The fault of the value.
        message: String,
    },
    /// A limit that is not a possible percentage.
    #[error("in the parameters for {DRIVER}, coreLimitPercent is {found}; it must be 1 to 100")]
    CoreLimit {
        /// The percentage that was given.
        found: u32,
    },
    /// A text that is not an amount of bytes.
    #[error("in the parameters for {DRIVER}, hostMemoryLimit is {found:?}; it must be a quantity such as 4Gi")]
    HostMemoryLimit {
        /// The text that was given.
        found: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    core_limit_percent: Option<u32>,
    priority_class: Option<PriorityClass>,
    audit_policy: Option<AuditPolicy>,
    host_memory_limit: Option<String>,
}

impl SliceConfig {
    /// Reads opaque parameters.
    ///
    /// # Errors
    /// See [`SliceConfigError`].
    pub fn parse(parameters: &Value) -> Result<SliceConfig, SliceConfigError> {
        // This is checked first, so that parameters of another version are not refused because of their fields.
        for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let found = parameters.get(key).and_then(Value::as_str).unwrap_or_default();
            if found != expected {
                return Err(SliceConfigError::OtherKind { key, found: found.into(), expected });
            }
        }
        let read: Parameters = serde_path_to_error::deserialize(parameters).map_err(|error| {
            SliceConfigError::Field { path: error.path().to_string(), message: error.inner().to_string() }
        })?;
        if let Some(found) = read.core_limit_percent.filter(|percent| !(1..=100).contains(percent)) {
            return Err(SliceConfigError::CoreLimit { found });
        }
        let host_memory_limit_bytes = read
            .host_memory_limit
            .map(|text| quantity::bytes(&text).map_err(|_| SliceConfigError::HostMemoryLimit { found: text }));
        Ok(SliceConfig {
            core_limit_percent: read.core_limit_percent,
            priority_class: read.priority_class,
            audit_policy: read.audit_policy,
            host_memory_limit_bytes: host_memory_limit_bytes.transpose()?,
        })
    }

    /// The combined parameters. If both give a value, that of `later` counts. But where the value protects others, the
    /// stricter one counts, so that a tenant's claim cannot undo what the administrator's class says: `stop` before
    /// `report`, and the smaller of two limits of host memory.
    #[must_use]
    pub fn overridden_by(self, later: SliceConfig) -> SliceConfig {
        SliceConfig {
            core_limit_percent: later.core_limit_percent.or(self.core_limit_percent),
            priority_class: later.priority_class.or(self.priority_class),
            audit_policy: self.audit_policy.max(later.audit_policy),
            host_memory_limit_bytes: smaller_limit(self.host_memory_limit_bytes, later.host_memory_limit_bytes),
        }
    }
}

/// The smaller of two limits, of which 0 stands for no limit.
fn smaller_limit(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    let limits = [one, other].into_iter().flatten();
    limits.clone().filter(|bytes| *bytes > 0).min().or(limits.min())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(field: &str, value: Value) -> Value {
        let mut parameters = json!({"apiVersion": API_VERSION, "kind": KIND});
        parameters[field] = value;
        parameters
    }

    #[test]
    fn every_field_is_read() {
        let config = SliceConfig::parse(&json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "coreLimitPercent": 80,
            "priorityClass": "latency-critical",
            "auditPolicy": "stop",
            "hostMemoryLimit": "4Gi",
        }));
        let expected = SliceConfig {
            core_limit_percent: Some(80),
            priority_class: Some(PriorityClass::LatencyCritical),
            audit_policy: Some(AuditPolicy::Stop),
            host_memory_limit_bytes: Some(4 << 30),
        };
        assert_eq!(config, Ok(expected));
    }

    #[test]
    fn a_limit_of_host_memory_is_rounded_down_to_whole_bytes() {
        let limit = |text: &str| {
            let config = SliceConfig::parse(&with("hostMemoryLimit", json!(text)));
            config.ok()?.host_memory_limit_bytes
        };
        assert_eq!(["0.1Gi", "1.1Gi", "0"].map(limit), [Some(107_374_182), Some(1_181_116_006), Some(0)]);
        // 0 is no limit at all, so less than a byte is not taken for it.
        assert_eq!(limit("0.5"), None);
    }

    #[test]
    fn what_is_not_said_is_left_open() {
        let config = SliceConfig::parse(&json!({"apiVersion": API_VERSION, "kind": KIND}));
        assert_eq!(config, Ok(SliceConfig::default()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        for (parameters, expected) in [
            (json!({}), "apiVersion \"\"; it must be \"gpu.aliquot.dev/v1alpha1\""),
            (json!(7), "apiVersion \"\""),
            (json!({"apiVersion": "gpu.aliquot.dev/v2", "x": 1}), "apiVersion \"gpu.aliquot.dev/v2\""),
            (json!({"apiVersion": API_VERSION, "kind": "GpuConfig"}), "kind \"GpuConfig\""),
            (with("coreLimitPercent", json!(0)), "coreLimitPercent is 0; it must be 1 to 100"),
            (with("coreLimitPercent", json!(101)), "coreLimitPercent is 101"),
            (with("coreLimitPercent", json!(-1)), "coreLimitPercent: invalid value: integer `-1`"),
            (with("coreLimitPercent", json!("80")), "coreLimitPercent: invalid type: string \"80\""),
            (with("corelimit", json!(80)), "unknown field `corelimit`"),
            (with("priorityClass", json!("high")), "priorityClass: unknown variant `high`"),
            (with("auditPolicy", json!("kill")), "auditPolicy: unknown variant `kill`"),
            (with("hostMemoryLimit", json!("4GB")), "hostMemoryLimit is \"4GB\"; it must be a quantity"),
        ] {
            let error = SliceConfig::parse(&parameters).unwrap_err().to_string();
            assert!(error.contains(expected), "{parameters}: {error}");
        }
    }

    #[test]
    fn a_later_config_wins_where_it_says_something() {
        let class =
            SliceConfig { core_limit_percent: Some(50), host_memory_limit_bytes: Some(1), ..Default::default() };
        let claim = SliceConfig {
            core_limit_percent: Some(80),
            priority_class: Some(PriorityClass::Batch),
            ..Default::default()
        };
        let expected = SliceConfig {
            core_limit_percent: Some(80),
            priority_class: Some(PriorityClass::Batch),
            audit_policy: None,
            host_memory_limit_bytes: Some(1),
        };
        assert_eq!(class.overridden_by(claim), expected);
    }

    #[test]
    fn what_protects_others_is_never_loosened() {
        let audit = |policy| SliceConfig { audit_policy: policy, ..SliceConfig::default() };
        let (report, stop) = (Some(AuditPolicy::Report), Some(AuditPolicy::Stop));
        for (one, other, expected) in
            [(stop, report, stop), (report, stop, stop), (report, None, report), (None, stop, stop), (None, None, None)]
        {
            assert_eq!(audit(one).overridden_by(audit(other)), audit(expected), "{one:?}, {other:?}");
        }
        let limit = |bytes| SliceConfig { host_memory_limit_bytes: bytes, ..SliceConfig::default() };
        for (one, other, expected) in [
            (Some(4), Some(8), Some(4)),
            (Some(8), Some(4), Some(4)),
            (Some(4), Some(0), Some(4)),
            (Some(0), Some(4), Some(4)),
            (Some(0), None, Some(0)),
            (None, Some(4), Some(4)),
            (None, None, None),
        ] {
            assert_eq!(limit(one).overridden_by(limit(other)), limit(expected), "{one:?}, {other:?}");
        }
    }
}
