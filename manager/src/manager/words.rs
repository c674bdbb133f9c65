//! Slices and their changes in words, for events.

use crate::size::Bytes;
use crate::slices::{Part, Slice};

/// The parts of a slice.
pub(super) fn has(slice: &Slice) -> String {
    let of_part = |part: &Part| format!("{} and {} of {}", share(part), Bytes(part.memory_limit_bytes), part.device);
    slice.parts.iter().map(of_part).collect::<Vec<_>>().join(", ")
}

/// What a change has made different. The devices of a slice never change.
pub(super) fn changes(before: &Slice, after: &Slice) -> String {
    let mut changes = Vec::new();
    let mut note = |what: &str, before: String, after: String, of: &str| {
        if before != after {
            changes.push(format!("{what} {before} → {after}{of}"));
        }
    };
    for (old, new) in before.parts.iter().zip(&after.parts) {
        let of = format!(" of {}", new.device);
        note("share", share(old), share(new), &of);
        let memory = |part: &Part| Bytes(part.memory_limit_bytes).to_string();
        note("memory", memory(old), memory(new), &of);
    }
    let host_memory = |slice: &Slice| match slice.host_memory_limit_bytes {
        0 => "without limit".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    note("host memory", host_memory(before), host_memory(after), "");
    note("priority", before.qos_class.as_str().to_owned(), after.qos_class.as_str().to_owned(), "");
    changes.extend(after.users.difference(&before.users).map(|user| format!("user {user} let in")));
    match changes.is_empty() {
        true => "nothing differs from before".to_owned(),
        false => changes.join(", "),
    }
}

/// The request and the limit of a part. They are often equal.
fn share(part: &Part) -> String {
    match (part.core_request_percent, part.core_limit_percent) {
        (request, limit) if request == limit => format!("{request} %"),
        (request, limit) => format!("{request} to {limit} %"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    use aliquot_node::QosClass;

    use super::*;
    use crate::inventory::DeviceUuid;
    use crate::slices::{Published, SliceId};

    fn slice() -> Slice {
        let part = |device: &str| Part {
            device: DeviceUuid::new(device),
            core_request_percent: 30,
            core_limit_percent: 30,
            memory_limit_bytes: 1 << 30,
        };
        Slice {
            name: "train".to_owned(),
            id: SliceId::from_random(1),
            parts: vec![part("GPU-a"), part("GPU-b")],
            host_memory_limit_bytes: 0,
            qos_class: QosClass::default(),
            audit_policy: None,
            published: Published::default(),
            created: SystemTime::UNIX_EPOCH,
            description: String::new(),
            pod_uid: None,
            owner: None,
            users: BTreeSet::new(),
        }
    }

    #[test]
    fn a_change_names_what_differs() {
        let before = slice();
        assert_eq!(changes(&before, &before), "nothing differs from before");
        let batch = Slice { qos_class: QosClass::Batch, ..slice() };
        assert_eq!(changes(&before, &batch), "priority standard → batch");
        let mut more = Slice { host_memory_limit_bytes: 2 << 30, users: [1000].into(), ..slice() };
        (more.parts[1].core_limit_percent, more.parts[1].memory_limit_bytes) = (100, 3 << 30);
        assert_eq!(
            changes(&before, &more),
            "share 30 % → 30 to 100 % of GPU-b, memory 1 GiB → 3 GiB of GPU-b, host memory without limit → 2 GiB, user 1000 \
             let in"
        );
    }

    #[test]
    fn equal_requests_and_limits_are_said_once() {
        assert_eq!(has(&slice()), "30 % and 1 GiB of GPU-a, 30 % and 1 GiB of GPU-b");
    }
}
