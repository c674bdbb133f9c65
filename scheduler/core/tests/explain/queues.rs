//! Reports of queues: what each uses, and why its claims are pending.

use aliquot_scheduler_core::explain::{QueueReport, Reason, ResourceReport};
use aliquot_scheduler_core::{Allowance, Resource};

use crate::setting::{Setting, limit, part, whole};

fn of<'a>(reports: &'a [QueueReport], queue: &str) -> &'a QueueReport {
    reports.iter().find(|report| report.queue == queue).expect("a report of each queue")
}

#[test]
fn each_queue_is_reported_with_what_it_holds_and_why_its_first_claim_waits() {
    let mut setting = Setting::with_nodes(1, 4);
    setting.add_queue("org", None, Allowance { quota: None, ..Allowance::default() });
    setting.add_queue("red", Some("org"), limit(100));
    setting.add_queue("blue", Some("org"), limit(400));
    setting.add_in("red", "red-0", part(80, 10));
    setting.add_in("red", "red-1", part(60, 10));
    setting.add_in("red", "red-2", part(70, 10));
    setting.add_in("blue", "blue-0", whole(1));
    let plan = setting.cycle();
    let reports = setting.scheduler.queue_reports(&setting.cluster, &plan);
    let order: Vec<(&str, u32)> = reports.iter().map(|report| (report.queue.as_str(), report.depth)).collect();
    assert_eq!(order, [("default", 0), ("org", 0), ("red", 1), ("blue", 1)]);
    let red = of(&reports, "red");
    let core = ResourceReport {
        resource: Resource::DeviceCore,
        held: 800,
        held_non_preemptible: 0,
        requested: 2100,
        fair_share: Some(1000),
        quota: Some(0),
        limit: Some(1000),
        past_usage_ppm: 0,
    };
    assert_eq!(red.resources.iter().find(|report| report.resource == Resource::DeviceCore), Some(&core));
    assert_eq!(red.waiting, 2);
    let (head, reason) = red.head.as_ref().expect("two claims wait");
    assert!(head == "red-1" && matches!(reason, Reason::QueueLimit(_)), "{head}: {reason}");
    assert_eq!(of(&reports, "org").waiting, 2);
    assert_eq!((of(&reports, "blue").waiting, &of(&reports, "blue").head), (0, &None));
    let held =
        |queue: &str| of(&reports, queue).resources.iter().find(|r| r.resource == Resource::DeviceCore).map(|r| r.held);
    assert_eq!(held("org"), Some(1800));
    let text = red.to_string();
    assert!(
        text.contains(
            "holds 80 % gpu-core of 210 % gpu-core asked for, fair share 100 % gpu-core, quota 0 % gpu-core, limit"
        ),
        "{text}"
    );
    assert!(text.contains("2 pod groups wait; the first is \"red-1\": queue \"red\" holds 80 % gpu-core"), "{text}");
}
