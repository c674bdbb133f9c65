use aliquot_dialects::Dialect::Nvidia;
use aliquot_dialects::{Advertised, NodeFacts, Share, Unit};

use crate::asking::{GIB, ask, ask_of, assert_gets, assert_refused, part};

#[test]
fn devices_are_whole() {
    assert_gets(
        Nvidia,
        &[(&[("nvidia.com/gpu", "1")], 1, Share::Whole), (&[("nvidia.com/gpu", "8")], 8, Share::Whole)],
    );
}

#[test]
fn a_mig_instance_is_one_of_its_profile() {
    for (resource, profile) in [
        ("nvidia.com/mig-3g.40gb", "3g.40gb"),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb+me"),
        ("nvidia.com/mig-1g.24gb.gfx", "1g.24gb+gfx"),
        ("nvidia.com/mig-1g.24gb.me.all", "1g.24gb+me.all"),
        ("nvidia.com/mig-2g.48gb-me", "2g.48gb-me"),
        ("nvidia.com/mig-1c.2g.10gb", "1c.2g.10gb"),
    ] {
        let wish = ask(Nvidia, &[(resource, "2")], &[]).unwrap();
        assert_eq!((wish.devices, wish.share), (2, Share::Whole));
        assert_eq!(wish.constraints.mig_profile.as_deref(), Some(profile));
    }
}

#[test]
fn replicas_of_a_device_fit_on_it() {
    for replicas in [2, 3, 7, 100] {
        let node = NodeFacts { nvidia_replicas: replicas, ..NodeFacts::default() };
        let wish = ask_of(Nvidia, &node, &[("nvidia.com/gpu.shared", "1")], &[]).unwrap();
        let each = wish.share.on(16 * GIB);
        assert!(each.memory_bytes * u64::from(replicas) <= 16 * GIB);
        assert!(each.core_request_percent * replicas <= 100, "{replicas}");
        assert_eq!(each.core_limit_percent, 100);
        let unit = Unit::Slot { per_device: replicas };
        assert_eq!(Nvidia.advertised(&node)[0], Advertised { resource: "nvidia.com/gpu.shared", unit });
    }
    let node = NodeFacts { nvidia_replicas: 4, ..NodeFacts::default() };
    let wish = ask_of(Nvidia, &node, &[("nvidia.com/gpu.shared", "1")], &[]).unwrap();
    assert_eq!(wish.share.on(16 * GIB), part(25, 100, 4 * GIB));
}

#[test]
fn devices_are_either_shared_or_whole() {
    for (nvidia_replicas, resource, is_offered, setting) in [
        (1, "nvidia.com/gpu", true, ""),
        (1, "nvidia.com/gpu.shared", false, "set nvidia_replicas in its configuration to 2 or more"),
        (4, "nvidia.com/gpu.shared", true, ""),
        (4, "nvidia.com/gpu", false, "set nvidia_replicas = 1 in its configuration"),
        (4, "nvidia.com/mig-1g.10gb", true, ""),
    ] {
        let node = NodeFacts { nvidia_replicas, ..NodeFacts::default() };
        let refused = ask_of(Nvidia, &node, &[(resource, "1")], &[]).err().map(|refusal| refusal.to_string());
        assert_eq!(refused.is_none(), is_offered, "{nvidia_replicas} {resource}: {refused:?}");
        assert!(refused.unwrap_or_default().contains(setting), "{nvidia_replicas} {resource}");
    }
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        Nvidia,
        &[
            (&[("nvidia.com/gpu", "-1")], "nvidia.com/gpu is \"-1\"; it must be a whole number"),
            (&[("nvidia.com/gpu", "0.5")], "a whole number"),
            (&[("nvidia.com/gpu.shared", "2")], "nvidia.com/gpu.shared is \"2\"; it must be 1 to 1"),
            (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpu.shared", "1")], "one kind of device"),
            (&[("nvidia.com/mig-1g.5gb", "1"), ("nvidia.com/mig-2g.10gb", "1")], "one kind of device"),
            (&[("nvidia.com/gpu", "1"), ("aliquot.dev/gpu-core", "10")], "are of two systems"),
        ],
    );
}
