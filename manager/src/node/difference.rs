//! Compares an existing slice with a requested one.

use std::fmt::Debug;

use aliquot_node::SliceRequest;

/// The difference between `found` and the slice that `asked` describes; `None` if there is none. A priority class that
/// the request leaves open is no difference, and neither is the description.
#[must_use]
pub(super) fn difference(asked: &SliceRequest, found: &SliceRequest) -> Option<String> {
    let class = asked.qos_class.or(found.qos_class);
    differs("parts", &asked.parts, &found.parts)
        .or_else(|| differs("priority class", &class, &found.qos_class))
        .or_else(|| differs("host memory limit", &asked.host_memory_limit_bytes, &found.host_memory_limit_bytes))
        .or_else(|| differs("audit policy", &asked.audit_policy, &found.audit_policy))
        .or_else(|| differs("aliases", &asked.aliases, &found.aliases))
        .or_else(|| differs("environment", &asked.environment, &found.environment))
        .or_else(|| differs("pod", &asked.pod_uid, &found.pod_uid))
}

fn differs<T: PartialEq + Debug>(what: &str, asked: &T, found: &T) -> Option<String> {
    (asked != found).then(|| format!("its {what} is {found:?}, not {asked:?}"))
}

#[cfg(test)]
mod tests {
    use aliquot_node::{AuditPolicy, Part, QosClass};

    use super::*;

    fn found() -> SliceRequest {
        let part = Part {
            device_uuid: "GPU-A".into(),
            core_request_percent: 30,
            core_limit_percent: 30,
            memory_limit_bytes: 1 << 30,
        };
        SliceRequest {
            name: "a".into(),
            parts: vec![part],
            qos_class: Some(QosClass::Standard),
            description: "one".into(),
            ..SliceRequest::default()
        }
    }

    #[test]
    fn unset_fields_are_no_difference() {
        let asked = SliceRequest { qos_class: None, description: "other".into(), ..found() };
        assert_eq!(difference(&asked, &found()), None);
        assert_eq!(difference(&found(), &found()), None);
    }

    #[test]
    fn whatever_differs_is_named() {
        let changed = |change: &dyn Fn(&mut SliceRequest)| {
            let mut asked = found();
            change(&mut asked);
            difference(&asked, &found()).unwrap_or_default()
        };
        assert!(changed(&|asked| asked.parts[0].core_request_percent = 31).contains("core_request_percent: 30"));
        assert!(changed(&|asked| asked.qos_class = Some(QosClass::Batch)).contains("not Some(Batch)"));
        assert_eq!(changed(&|asked| asked.host_memory_limit_bytes = 1), "its host memory limit is 0, not 1");
        assert!(changed(&|asked| asked.audit_policy = Some(AuditPolicy::Stop)).starts_with("its audit policy"));
        assert!(changed(&|asked| _ = asked.aliases.insert("b".into())).starts_with("its aliases"));
        assert!(changed(&|asked| _ = asked.environment.insert("A".into(), "b".into())).starts_with("its environment"));
        assert_eq!(changed(&|asked| asked.pod_uid = Some("u".into())), "its pod is None, not Some(\"u\")");
    }
}
