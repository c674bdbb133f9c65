//! The users of the world: they submit, resize and withdraw claims.

use aliquot_scheduler_core::{Claim, DeviceCore, DeviceMemory, DeviceRequest, PodGroup, Request};
use aliquot_scheduler_engine::{ClaimUid, Observation};

use super::World;

impl World {
    pub(super) fn submit(&mut self) -> Result<(), String> {
        self.submitted += 1;
        let percent = [25, 50, 100, 100][usize::try_from(self.random.below(4)).unwrap_or(0)];
        let devices = DeviceRequest {
            count: if percent == 100 { 1 + u16::from(self.random.chance(200)) } else { 1 },
            core: DeviceCore::from_percent(percent),
            memory: DeviceMemory::Thousandths(percent * 10),
        };
        let queue = if self.random.chance(500) { "left" } else { "right" };
        let priority = if self.random.chance(200) { 90 } else { 50 };
        self.want(Claim {
            name: format!("claim-{}", self.submitted),
            request: Request { devices, ..Request::default() },
            queue: queue.into(),
            priority,
            preemptible: true,
            ..Claim::default()
        })
    }

    /// A user asks for more or less, whether the claim runs or not.
    pub(super) fn resize(&mut self) -> Result<(), String> {
        let index = usize::try_from(self.random.below(self.wanted.len() as u64)).unwrap_or(0);
        let percent = [25, 50, 75][usize::try_from(self.random.below(3)).unwrap_or(0)];
        let Some((uid, claim)) = self.wanted.iter_mut().nth(index) else { return Ok(()) };
        if claim.request.devices.count == 1 {
            claim.request.devices.core = DeviceCore::from_percent(percent);
            claim.request.devices.memory = DeviceMemory::Thousandths(percent * 10);
        }
        let (uid, request) = (uid.clone(), claim.request.clone());
        // There may be no room, or a resize may be under way: the claim keeps what it has.
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let _ = engine.handle(self.now_ms, Observation::ClaimResized(uid, Box::new(request)));
        engine.check().map_err(|wrong| format!("after a resize: {wrong}"))
    }

    pub(super) fn submit_gang(&mut self) -> Result<(), String> {
        let name = format!("gang-{}", self.submitted);
        let group = PodGroup {
            name: name.clone(),
            queue: "left".into(),
            min_members: 2,
            priority: 50,
            preemptible: true,
            staleness_grace_ms: Some(2000),
            ..PodGroup::default()
        };
        self.groups.push(group.clone());
        // Members may be told before their group.
        let is_late = self.random.chance(300);
        if !is_late {
            self.tell(Observation::Group(group.clone()))?;
        }
        for _ in 0..2 + self.random.below(2) {
            self.submitted += 1;
            let request = Request { devices: DeviceRequest::whole(1), ..Request::default() };
            self.want(Claim {
                name: format!("claim-{}", self.submitted),
                request,
                pod_group: Some(name.clone()),
                ..Claim::default()
            })?;
        }
        if is_late { self.tell(Observation::Group(group)) } else { Ok(()) }
    }

    fn want(&mut self, claim: Claim) -> Result<(), String> {
        self.submit_as(self.wire.uid(self.submitted), claim)
    }

    pub(crate) fn submit_as(&mut self, uid: ClaimUid, claim: Claim) -> Result<(), String> {
        self.wanted.insert(uid.clone(), claim.clone());
        self.tell(Observation::Claim(uid, Box::new(claim)))
    }

    pub(crate) fn withdraw(&mut self, uid: &ClaimUid) -> Result<(), String> {
        self.wanted.remove(uid);
        self.tell(Observation::ClaimEnded(uid.clone()))
    }
}
