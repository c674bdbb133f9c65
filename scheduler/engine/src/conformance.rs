//! What every backend must do, as checks that its tests run against it.
//!
//! A test builds a [`Rig`]: an engine with the backend, and the world behind that backend. Each of [`CHECKS`] gets a
//! new rig. The rig keeps the time, which may be virtual.

use std::sync::Arc;

use aliquot_scheduler_core::{Bytes, Claim, DeviceRequest, DeviceSpec, MilliCpu, NodeSpec, Request};

use crate::names::{ClaimUid, Generation, NodeName};
use crate::store::Phase;
use crate::view::{View, Whereabouts};

/// An engine with a backend, and the world behind that, which a test can change and look at.
pub trait Rig {
    /// The uid of the claim with this number, as the backend's world names claims.
    fn uid(&self, number: u64) -> ClaimUid;
    /// Adds a machine that works.
    fn add_node(&mut self, spec: NodeSpec);
    /// A user submits this claim. A second call with the same claim submits it again.
    fn want(&mut self, uid: &ClaimUid, claim: &Claim);
    /// The user withdraws this claim.
    fn end(&mut self, uid: &ClaimUid);
    /// Lets this many milliseconds pass.
    fn pass(&mut self, ms: u64);
    /// A time long enough for the world to come to rest: longer than a lease, and than deadlines with their
    /// repetitions.
    fn patience_ms(&self) -> u64;
    /// The newest published view.
    fn view(&self) -> Arc<View>;
    /// The instances that really run, as the machines say.
    fn running(&self) -> Vec<(ClaimUid, NodeName, Generation)>;
    /// The claim's instance ends by itself.
    fn die(&mut self, uid: &ClaimUid);
    /// The engine stops at once, and starts again from its store.
    fn restart(&mut self);
    /// Cuts a machine off from the engine in both directions, or connects it again.
    fn cut(&mut self, node: &NodeName, is_cut: bool);
}

/// A check of a rig; the error describes the failure.
pub type Check = fn(&mut dyn Rig) -> Result<(), String>;

/// All checks, each with its subject.
pub const CHECKS: [(&str, Check); 9] = [
    ("a claim that fits runs, and readers see where", starts),
    ("a claim that has ended is stopped and forgotten", ends),
    ("a claim that fits nowhere waits, and runs when there is room", waits),
    ("an observation that is told twice changes nothing", told_twice),
    ("a restart loses nothing and starts nothing again", restarts),
    ("a wanted claim whose instance ended by itself runs again, as another instance", dies),
    ("room is used again only when it is free", makes_room),
    ("a machine that is cut off never has its work run twice", is_cut_off),
    ("a claim that ended while its machine was cut off is stopped in the end", ends_while_cut_off),
];

fn machine(number: usize, devices: usize) -> NodeSpec {
    let device = |index| DeviceSpec {
        uuid: format!("GPU-{number}-{index}"),
        model: "A".into(),
        memory: Bytes::from_mib(80 << 10),
        ..DeviceSpec::default()
    };
    NodeSpec {
        name: format!("node-{number}"),
        cpu: MilliCpu::new(64_000),
        memory: Bytes::from_mib(512 << 10),
        devices: (0..devices).map(device).collect(),
        ..NodeSpec::default()
    }
}

/// The number of the claim that most checks are about.
const FIRST: u64 = 1;

fn claim(uid: &ClaimUid, devices: u16) -> Claim {
    let request = Request { devices: DeviceRequest::whole(devices), ..Request::default() };
    Claim { name: uid.to_string(), request, priority: 50, preemptible: true, ..Claim::default() }
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn rest(rig: &mut dyn Rig) {
    let patience_ms = rig.patience_ms();
    rig.pass(patience_ms);
}

fn want(rig: &mut dyn Rig, number: u64, devices: u16) -> ClaimUid {
    let uid = rig.uid(number);
    rig.want(&uid, &claim(&uid, devices));
    uid
}

/// Where a claim runs, after a check that machines and readers say the same.
fn place(rig: &dyn Rig, uid: &ClaimUid) -> Result<Option<(NodeName, Generation)>, String> {
    let running: Vec<_> = rig.running().into_iter().filter(|(running, ..)| running == uid).collect();
    require(running.len() <= 1, || format!("{uid} runs in several places: {running:?}"))?;
    let real = running.into_iter().next().map(|(_, node, instance)| (node, instance));
    let shown = match rig.view().claim(uid).map(|claim| claim.whereabouts) {
        Some(Whereabouts::There { node, instance, phase: Phase::Running, .. }) => Some((node, instance)),
        _ => None,
    };
    require(real == shown, || format!("{uid} runs at {real:?}, and readers see {shown:?}"))?;
    Ok(real)
}

fn runs(rig: &dyn Rig, uid: &ClaimUid) -> Result<(NodeName, Generation), String> {
    place(rig, uid)?.ok_or_else(|| format!("{uid} does not run: {:?}", rig.view().claim(uid)))
}

fn starts(rig: &mut dyn Rig) -> Result<(), String> {
    rig.add_node(machine(0, 2));
    let uid = want(rig, FIRST, 2);
    rest(rig);
    let (node, _) = runs(rig, &uid)?;
    require(node.as_str() == "node-0", || format!("it runs on {node}"))
}

fn ends(rig: &mut dyn Rig) -> Result<(), String> {
    starts(rig)?;
    let uid = rig.uid(FIRST);
    rig.end(&uid);
    rest(rig);
    require(rig.running().is_empty(), || format!("still there: {:?}", rig.running()))?;
    require(rig.view().claim(&uid).is_none(), || "readers still see it".into())
}

fn waits(rig: &mut dyn Rig) -> Result<(), String> {
    rig.add_node(machine(0, 1));
    let uid = want(rig, FIRST, 2);
    rest(rig);
    let shown = rig.view().claim(&uid).map(|claim| claim.whereabouts);
    require(shown == Some(Whereabouts::Waiting), || format!("it does not wait: {shown:?}"))?;
    let reasons = rig.view().explain(&uid).map(|explanation| explanation.reasons);
    require(reasons.is_some_and(|reasons| !reasons.is_empty()), || "it waits without a reason".into())?;
    rig.add_node(machine(1, 2));
    rest(rig);
    runs(rig, &uid).map(|_| ())
}

fn told_twice(rig: &mut dyn Rig) -> Result<(), String> {
    starts(rig)?;
    let uid = rig.uid(FIRST);
    let before = runs(rig, &uid)?;
    rig.want(&uid, &claim(&uid, 2));
    rest(rig);
    let after = runs(rig, &uid)?;
    require(before == after, || format!("it ran at {before:?} and runs at {after:?}"))
}

fn restarts(rig: &mut dyn Rig) -> Result<(), String> {
    rig.add_node(machine(0, 2));
    let runs_before: Vec<ClaimUid> = [1, 2].into_iter().map(|number| want(rig, number, 1)).collect();
    rest(rig);
    let waiting = want(rig, 3, 2);
    rest(rig);
    let before: Result<Vec<_>, String> = runs_before.iter().map(|uid| runs(rig, uid)).collect();
    rig.restart();
    rest(rig);
    let after: Result<Vec<_>, String> = runs_before.iter().map(|uid| runs(rig, uid)).collect();
    let (before, after) = (before?, after?);
    require(before == after, || format!("they ran at {before:?} and run at {after:?}"))?;
    let shown = rig.view().claim(&waiting).map(|claim| claim.whereabouts);
    require(shown == Some(Whereabouts::Waiting), || format!("the third one does not wait: {shown:?}"))
}

fn dies(rig: &mut dyn Rig) -> Result<(), String> {
    starts(rig)?;
    let uid = rig.uid(FIRST);
    let (_, before) = runs(rig, &uid)?;
    rig.die(&uid);
    rest(rig);
    let (_, after) = runs(rig, &uid)?;
    require(after > before, || format!("instance {before} ended, and {after} runs"))
}

fn makes_room(rig: &mut dyn Rig) -> Result<(), String> {
    starts(rig)?;
    let (first, uid) = (rig.uid(FIRST), rig.uid(2));
    rig.want(&uid, &Claim { priority: 90, ..claim(&uid, 2) });
    let patience_ms = rig.patience_ms();
    for _ in 0..100 {
        rig.pass(patience_ms / 100);
        require(rig.running().len() <= 1, || format!("two hold the same devices: {:?}", rig.running()))?;
    }
    runs(rig, &uid)?;
    require(place(rig, &first)?.is_none(), || "the other one still runs".into())
}

fn is_cut_off(rig: &mut dyn Rig) -> Result<(), String> {
    starts(rig)?;
    rig.add_node(machine(1, 2));
    let node = NodeName::from("node-0");
    rig.cut(&node, true);
    let patience_ms = rig.patience_ms();
    for _ in 0..100 {
        rig.pass(patience_ms / 100);
        require(rig.running().len() <= 1, || format!("it runs twice: {:?}", rig.running()))?;
    }
    rig.cut(&node, false);
    rest(rig);
    let uid = rig.uid(FIRST);
    runs(rig, &uid).map(|_| ())
}

fn ends_while_cut_off(rig: &mut dyn Rig) -> Result<(), String> {
    starts(rig)?;
    let (uid, node) = (rig.uid(FIRST), NodeName::from("node-0"));
    rig.cut(&node, true);
    rig.end(&uid);
    rest(rig);
    rig.cut(&node, false);
    rest(rig);
    require(rig.running().is_empty(), || format!("still there: {:?}", rig.running()))?;
    require(rig.view().claim(&uid).is_none(), || "readers still see it".into())
}
