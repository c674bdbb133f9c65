//! What namespaces give to claims that do not say how much they need.

use aliquot_scheduler_core::{ClaimBounds, LimitRange, NamespaceSpec};

use super::*;

/// The claims' names, the CPU that each asks for, and the percent of a device's time.
const MEMBERS: [(&str, u64, u32); 2] = [("said", 2000, 50), ("unsaid", 0, 0)];

/// A namespace with a default of so much CPU and half a device's time. It rejects claims for more CPU than the maximum.
fn team(default: u64, maximum: u64) -> Observation {
    let cpu = ClaimBounds { default: Some(default), maximum: Some(maximum), ..ClaimBounds::default() };
    let device_core = ClaimBounds { default: Some(500), ..ClaimBounds::default() };
    let limit_range = LimitRange { cpu, device_core, ..LimitRange::default() };
    Observation::Namespace(NamespaceSpec { name: "team".into(), limit_range, ..NamespaceSpec::default() })
}

fn member(name: &str, cpu: u64, percent: u32) -> Observation {
    let (uid, mut of) = claim(name, 50, 50);
    of.request.cpu = MilliCpu::new(cpu);
    of.request.devices.core = DeviceCore::from_percent(percent);
    Observation::Claim(uid, Box::new(Claim { namespace: "team".into(), ..of }))
}

/// Runs two claims, one that says what it needs and one that does not, and then restarts the engine with these bounds.
fn restarted(bounds: Observation) -> Kit {
    let mut kit = Kit::new(1, Vec::new());
    kit.tell(team(500, 4000));
    for (name, cpu, percent) in MEMBERS {
        kit.tell(member(name, cpu, percent));
        let (_, instance) = kit.start();
        kit.outcome(name, instance, instance, StepOutcome::Started);
        kit.pass(100);
    }
    let mut kit = kit.restart();
    kit.tell(bounds);
    MEMBERS.into_iter().for_each(|(name, cpu, percent)| kit.tell(member(name, cpu, percent)));
    kit.tell(Observation::Synced);
    kit
}

#[test]
fn what_runs_with_what_its_namespace_gave_it_goes_on_after_a_restart() {
    let mut kit = restarted(team(500, 4000));
    assert_eq!(kit.pass(100), []);
    assert_eq!((kit.phase("said"), kit.phase("unsaid")), (Some(Phase::Running), Some(Phase::Running)));
}

#[test]
fn what_runs_goes_on_after_a_restart_with_other_bounds() {
    let mut kit = restarted(team(800, 1000));
    assert_eq!(kit.pass(100), []);
    let Some(Whereabouts::There { phase, amounts, .. }) = kit.whereabouts("unsaid") else { panic!("it does not run") };
    assert_eq!((phase, amounts.cpu), (Phase::Running, MilliCpu::new(500)), "what it holds does not change");
    assert_eq!(kit.phase("said"), Some(Phase::Running));
}
