//! Suggested changes are exactly as large as needed.

use aliquot_scheduler_core::explain::Change;
use aliquot_scheduler_core::{Bytes, Claim, DeviceMemory, MilliCpu, PodGroup, Request, Resource};

use crate::setting::{GIB, Setting, cores, limit, node, part, quota, whole};

/// Checks that each suggested change helps; `make` makes the setting anew for each of them.
fn each_helps(make: impl Fn() -> (Setting, aliquot_scheduler_core::ClaimId)) -> Vec<Change> {
    let (setting, claim) = make();
    let changes = setting.explain(claim).changes;
    for change in &changes {
        let (setting, claim) = make();
        assert!(setting.helps(claim, change), "{change}");
    }
    changes
}

#[test]
fn the_most_cpu_memory_and_device_share_that_fits_is_found() {
    let make = |request: fn() -> Request| {
        move || {
            let mut setting = Setting::with_nodes(1, 1);
            let runs = Request { cpu: MilliCpu::new(9500), memory: Bytes::new(40 * GIB), ..part(70, 30) };
            setting.add("runs", runs);
            setting.cycle();
            let claim = setting.add("claim", request());
            setting.cycle();
            (setting, claim)
        }
    };
    let wait = |text: &str| text == "wait until \"runs\" ends";
    let found = |request: fn() -> Request| {
        let changes: Vec<String> = each_helps(make(request)).iter().map(Change::to_string).collect();
        assert!(changes.last().is_some_and(|last| wait(last)), "{changes:?}");
        changes[..changes.len() - 1].to_vec()
    };
    assert_eq!(found(|| cores(8)), ["ask for 6.5 CPU cores instead of 8 CPU cores"]);
    let memory = || Request { memory: Bytes::new(32 * GIB), ..Request::default() };
    assert_eq!(found(memory), ["ask for 24 GiB of memory instead of 32 GiB"]);
    assert_eq!(found(|| part(50, 5)), ["ask for 30 % gpu-core of each device instead of 50 %"]);
    assert_eq!(found(|| part(20, 16)), ["ask for 10 GiB of each device's gpu-memory instead of 16 GiB"]);
    // Two resources are lacking, so no change of only one of them helps.
    assert!(found(|| part(50, 16)).is_empty());
}

#[test]
fn a_part_of_a_device_is_suggested_as_a_part() {
    let mut setting = Setting::with_nodes(1, 1);
    setting.add("runs", part(20, 30));
    setting.cycle();
    let mut half = part(20, 0);
    half.devices.memory = DeviceMemory::Thousandths(500);
    let claim = setting.add("claim", half);
    assert_eq!(
        setting.suggestions(claim),
        ["ask for 25 % of each device's gpu-memory instead of 50 %", "wait until \"runs\" ends"]
    );
}

#[test]
fn fewer_devices_are_suggested_where_fewer_are_free() {
    let make = || {
        let mut setting = Setting::with_nodes(2, 4);
        for devices in [1, 3, 1] {
            setting.add("runs", whole(devices));
        }
        setting.cycle();
        let claim = setting.add("claim", whole(4));
        (setting, claim)
    };
    assert_eq!(each_helps(make).first(), Some(&Change::FewerDevices { request: None, from: 4, to: 3 }));
}

#[test]
fn a_limit_is_raised_by_exactly_what_is_missing() {
    let make = || {
        let mut setting = Setting::with_nodes(1, 8);
        setting.add_queue("team", None, limit(150));
        setting.add_in("team", "runs", whole(1));
        let claim = setting.add_in("team", "claim", part(80, 10));
        setting.cycle();
        (setting, claim)
    };
    let changes = each_helps(make);
    let raise = |to: u64| Change::RaiseLimit { queue: "team".into(), resource: Resource::DeviceCore, from: 1500, to };
    assert!(changes.contains(&raise(1800)), "{changes:?}");
    assert!(changes.iter().any(|change| change.to_string() == "ask for 50 % gpu-core of each device instead of 80 %"));
    assert!(changes.iter().any(|change| change.to_string() == "wait until \"runs\" ends"));
    assert!(!make().0.helps(make().1, &raise(1799)));
}

#[test]
fn a_quota_is_raised_by_exactly_what_is_missing() {
    let make = || {
        let mut setting = Setting::with_nodes(1, 8);
        setting.add_queue("team", None, quota(50));
        let claim = Claim { name: "claim".into(), queue: "team".into(), request: part(80, 1), ..Claim::default() };
        let claim = setting.add_claim(claim);
        setting.cycle();
        (setting, claim)
    };
    let raise = |to: u64| Change::RaiseQuota { queue: "team".into(), resource: Resource::DeviceCore, from: 500, to };
    assert!(each_helps(make).contains(&raise(800)));
    assert!(!make().0.helps(make().1, &raise(799)));
}

#[test]
fn constraints_that_keep_a_claim_from_free_nodes_are_named_one_by_one() {
    let make = || {
        let mut setting = Setting::with_nodes(1, 1);
        let mut other = node("other", "B", 1);
        other.labels.insert("zone".into(), "b".into());
        setting.add_node(other);
        setting.add("runs", part(90, 30));
        setting.cycle();
        let mut request = part(50, 10);
        request.constraints.models.insert("A".into());
        let claim = setting.add("claim", request);
        setting.cycle();
        (setting, claim)
    };
    assert!(each_helps(make).contains(&Change::AllowModel("B".into())));
    let make = || {
        let (mut setting, _) = make();
        let mut request = part(50, 10);
        request.constraints.labels.insert("zone".into(), "a".into());
        let claim = setting.add("claim", request);
        (setting, claim)
    };
    assert_eq!(each_helps(make), [Change::DropLabel { key: "zone".into(), value: "a".into() }]);
    let make = || {
        let (mut setting, _) = make();
        let mut request = part(50, 10);
        request.constraints.attributes.insert("architecture".into(), "hopper".into());
        let claim = setting.add("claim", request);
        (setting, claim)
    };
    assert_eq!(each_helps(make), [Change::DropAttribute { key: "architecture".into(), value: "hopper".into() }]);
}

#[test]
fn a_gang_is_told_how_many_members_could_start_together() {
    let make = || {
        let mut setting = Setting::with_nodes(3, 2);
        setting.add("runs", whole(1));
        setting.cycle();
        let gang = PodGroup { name: "gang".into(), min_members: 6, ..PodGroup::default() };
        let (_, members) = setting.add_group(gang, 6, &whole(1));
        setting.cycle();
        (setting, members[0])
    };
    let changes = each_helps(make);
    assert!(changes.contains(&Change::LowerMinimum { from: 6, to: 5 }), "{changes:?}");
    assert!(changes.iter().any(|change| matches!(change, Change::WaitFor { name, .. } if name == "runs")));
}

#[test]
fn of_those_whose_end_would_help_the_least_important_and_oldest_is_named() {
    let mut setting = Setting::with_nodes(3, 1);
    let run = |name: &str, priority: i32| Claim { name: name.into(), priority, request: whole(1), ..Claim::default() };
    for (name, priority) in [("important", 100), ("old", 50), ("young", 50)] {
        setting.add_claim(run(name, priority));
        setting.cycle();
        let later = setting.cluster.now_ms() + 1000;
        setting.cluster.apply(aliquot_scheduler_core::Event::TimeAdvanced(later)).expect("time goes on");
    }
    let claim = setting.add("claim", whole(1));
    assert_eq!(setting.suggestions(claim), ["wait until \"old\" ends"]);
}

#[test]
fn small_changes_come_before_large_ones() {
    let mut setting = Setting::with_nodes(1, 1);
    setting.add("runs", part(51, 1));
    setting.cycle();
    let mut cordoned = node("cordoned", "A", 1);
    cordoned.cordoned = true;
    setting.add_node(cordoned);
    let claim = setting.add("claim", part(50, 1));
    assert_eq!(
        setting.suggestions(claim),
        [
            "ask for 49 % gpu-core of each device instead of 50 %",
            "uncordon node \"cordoned\"",
            "wait until \"runs\" ends"
        ]
    );
}
