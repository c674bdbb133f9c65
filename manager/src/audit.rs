//! The audit: compares what the driver sees with the ledgers.
//!
//! Preloading is no security barrier. A program that clears its environment, loads a second copy of the driver's
//! library or speaks to the device by itself is not limited. But the driver's list of processes shows it, and the
//! manager knows which slice it belongs to ([`attribution`](crate::attribution)). So the audit reports the process, and
//! stops it where the node's policy says so.
//!
//! [`judgement`] judges what one look shows, and [`suspicion`] decides when a judgement is believed; both are pure.
//! [`registration`] finds out whether a process uses the shim.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aliquot_node::AuditPolicy;
use parking_lot::Mutex;
use tracing::{error, info, warn};

use crate::attribution::{Place, ProcessId};
use crate::config::AuditSettings;
use crate::devices::{DeviceLook, ProcessLook};
use crate::events::{Event, Events, Kind as EventKind};
use crate::inventory::{DeviceUuid, SharingMode};
use crate::procfs::{self, FileId};
use crate::region::view::{self, Progress};
use crate::size::Bytes;

mod finding;
mod judgement;
mod registration;
mod stop;
mod suspicion;

pub(crate) use finding::{Finding, Kind};

use finding::Subject;
use judgement::{Facts, SliceFacts, Verdict, judge};
use registration::Registrations;
use suspicion::{Confirmed, Suspicions};

/// Stopped processes are reported for this long, and at most this many of them.
const STOPPED_KEPT: Duration = Duration::from_secs(600);
const STOPPED_MAX: usize = 64;
/// A process that keeps a device busy for less than this part of the time does not count as working.
const WORK_PERCENT_MIN: u32 = 10;

/// The audit's settings and findings.
#[derive(Debug)]
pub(crate) struct Audit {
    settings: AuditSettings,
    events: Arc<Events>,
    findings: Mutex<Vec<Finding>>,
    stopped: AtomicU64,
}

impl Audit {
    /// An audit that has found nothing yet.
    #[must_use]
    pub(crate) fn new(settings: AuditSettings, events: Arc<Events>) -> Audit {
        Audit { settings, events, findings: Mutex::default(), stopped: AtomicU64::new(0) }
    }

    /// The policy for processes that get past their slice, unless the slice has a stricter one.
    #[must_use]
    pub(crate) fn policy(&self) -> AuditPolicy {
        self.settings.policy
    }

    /// The policy for processes that get past a slice that has `own`. A tenant's claim may give it, so the stricter of
    /// both counts.
    fn policy_with(&self, own: Option<AuditPolicy>) -> AuditPolicy {
        own.map_or(self.policy(), |own| own.max(self.policy()))
    }

    /// Current findings and recently stopped processes, the oldest first.
    #[must_use]
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.findings.lock().clone()
    }

    /// Number of processes that were stopped. Each one counted here is already among [`Self::findings`].
    #[must_use]
    pub(crate) fn stopped(&self) -> u64 {
        self.stopped.load(Ordering::Acquire)
    }
}

/// Whether the findings name this machine's MPS server on the device. A tenant's own MPS server does not count: it
/// serves its slice alone.
#[must_use]
pub(crate) fn has_mps_server(findings: &[Finding], device: &DeviceUuid) -> bool {
    let serves =
        |finding: &Finding| finding.kind == Kind::MpsServer && finding.slice.is_none() && finding.device == *device;
    findings.iter().any(serves)
}

/// Looks, judges and acts. Owned by the one thread that asks the driver.
pub(crate) struct Auditor {
    audit: Arc<Audit>,
    suspicions: Suspicions,
    registrations: Registrations,
    /// Progress in the slots of processes at the last look.
    progress: BTreeMap<(ProcessId, DeviceUuid), Progress>,
    stopped: VecDeque<(ProcessId, Finding)>,
    stopped_total: u64,
    /// Processes that could not be stopped, so that the error is logged once.
    unstoppable: BTreeSet<Subject>,
}

/// A process under suspicion.
struct Seen<'look> {
    process: &'look ProcessLook,
    may_be_stopped: bool,
}

impl Auditor {
    /// An auditor that writes its findings to `audit`.
    #[must_use]
    pub(crate) fn new(audit: Arc<Audit>) -> Auditor {
        Auditor {
            audit,
            suspicions: Suspicions::default(),
            registrations: Registrations::default(),
            progress: BTreeMap::new(),
            stopped: VecDeque::new(),
            stopped_total: 0,
            unstoppable: BTreeSet::new(),
        }
    }

    /// Judges the look taken at `now_ns`, of all devices that answered.
    pub(crate) fn look(&mut self, now_ns: u64, looks: &[DeviceLook]) {
        let now = SystemTime::now();
        let progress_before = std::mem::take(&mut self.progress);
        let mps_server = FileId::of(&self.audit.settings.mps_server);
        let is_mps_server =
            |process: &ProcessLook| mps_server.is_some() && procfs::program(process.id.pid) == mps_server;
        let mut seen: BTreeMap<Subject, Seen<'_>> = BTreeMap::new();
        for look in looks {
            // Only a server outside of slices counts: a tenant's own server serves processes of its slice, and those
            // can be told apart.
            let is_outside = |process: &&ProcessLook| matches!(process.place, Place::Outside);
            let behind_mps = look.processes.iter().filter(is_outside).any(is_mps_server);
            let uses = uses_of_slices(look);
            for process in &look.processes {
                let facts = Facts {
                    is_mps_server: is_mps_server(process),
                    behind_mps,
                    shared_by_mps: look.sharing == SharingMode::Mps,
                    is_sliced: !look.parts.is_empty(),
                    computes: process.computes,
                    slice: self.slice_facts(look, &uses, process, now_ns),
                    memory_bytes: process.memory_bytes.unwrap_or(0),
                    held_bytes: held_bytes(look, process),
                    works_unseen: self.works_unseen(look, process, &progress_before),
                };
                let verdict = judge(&facts, self.audit.settings.overhead_allowance_bytes);
                if let Some(Verdict { kind, may_be_stopped }) = verdict {
                    let subject = Subject { kind, process: process.id, device: look.device.clone() };
                    seen.insert(subject, Seen { process, may_be_stopped });
                }
            }
        }
        self.unstoppable.retain(|subject| seen.contains_key(subject));
        self.registrations.keep(&looks.iter().flat_map(|look| &look.processes).map(|process| process.id).collect());
        let confirmed = self.suspicions.look(now_ns, now, seen.keys().cloned().collect());
        let mut findings: Vec<Finding> = Vec::new();
        for confirmed in confirmed {
            let Some(seen) = seen.get(&confirmed.subject) else { continue };
            // Already stopped: the process takes some time to end.
            if self.stopped.iter().any(|(stopped, _)| *stopped == confirmed.subject.process) {
                continue;
            }
            findings.extend(self.act(&confirmed, seen, now_ns));
        }
        self.stopped.retain(|(_, finding)| {
            let age = finding.stopped.and_then(|stopped| now.duration_since(stopped).ok()).unwrap_or_default();
            age < STOPPED_KEPT
        });
        findings.extend(self.stopped.iter().map(|(_, finding)| finding.clone()));
        findings.extend(looks.iter().flat_map(damaged_regions));
        findings.sort_by_key(|finding| finding.since);
        *self.audit.findings.lock() = findings;
        // Stored after the findings, so that no reader sees a count whose finding is missing.
        self.audit.stopped.store(self.stopped_total, Ordering::Release);
    }

    /// Reports a confirmed suspicion, and stops the process if the policy says so. Returns the finding, unless the
    /// process was stopped or is gone.
    fn act(&mut self, confirmed: &Confirmed, seen: &Seen<'_>, now_ns: u64) -> Option<Finding> {
        let Seen { process, may_be_stopped } = *seen;
        let Subject { kind, process: id, device } = &confirmed.subject;
        let slice = match &process.place {
            Place::Inside { slice, .. } => Some(slice),
            Place::Outside => None,
        };
        let mut finding = Finding {
            kind: *kind,
            slice: slice.map(|slice| slice.name.clone()),
            device: device.clone(),
            pid: id.pid,
            command: procfs::command(id.pid).text().to_owned(),
            memory_bytes: process.memory_bytes,
            since: confirmed.since,
            stopped: None,
        };
        if confirmed.is_new {
            report(&finding);
            let text = format!("{}: {}", finding.kind.in_words(), finding.command);
            self.audit.events.record(event(Event::of(EventKind::AuditFinding, text), &finding));
        }
        let policy = self.audit.policy_with(slice.and_then(|slice| slice.audit_policy));
        if policy != AuditPolicy::Stop || !may_be_stopped {
            return Some(finding);
        }
        // Checked once more: the process may have attached since the look.
        let registrations = &mut self.registrations;
        let is_guilty =
            || *kind != Kind::Unregistered || slice.is_some_and(|slice| !registrations.has(process, slice, now_ns));
        match stop::stop(*id, is_guilty) {
            Ok(true) => {
                warn!(
                    slice = finding.slice,
                    pid = id.pid,
                    command = finding.command,
                    "stopped a process by the audit's policy"
                );
                let text = format!("was stopped by the audit's policy: {}", finding.command);
                self.audit.events.record(event(Event::of(EventKind::ProcessStopped, text), &finding));
                self.stopped_total += 1;
                finding.stopped = Some(SystemTime::now());
                self.stopped.push_back((*id, finding));
                if self.stopped.len() > STOPPED_MAX {
                    self.stopped.pop_front();
                }
                None
            }
            Ok(false) => None,
            Err(error) => {
                if self.unstoppable.insert(confirmed.subject.clone()) {
                    error!(slice = finding.slice, pid = id.pid, %error, "cannot stop a process");
                }
                Some(finding)
            }
        }
    }

    fn slice_facts(
        &mut self,
        look: &DeviceLook,
        uses: &BTreeMap<u64, SliceUse>,
        process: &ProcessLook,
        now_ns: u64,
    ) -> Option<SliceFacts> {
        let Place::Inside { slice, .. } = &process.place else { return None };
        let SliceUse { processes, memory_bytes } = uses.get(&slice.number).copied().unwrap_or_default();
        let part = look.parts.iter().find(|part| part.slice.number == slice.number);
        Some(SliceFacts {
            has_device: part.is_some(),
            is_registered: self.registrations.has(process, slice, now_ns),
            used_bytes: memory_bytes,
            ledger_bytes: part.map_or(0, |part| part.ledger_bytes),
            is_damaged: slice.damage().is_some(),
            limit_bytes: part.map_or(0, |part| part.limit_bytes),
            limit_max_bytes: part.map_or(0, |part| part.limit_max_bytes),
            processes,
        })
    }

    /// Whether the process kept the device busy from the last look to this one without a lease, while its slot shows no
    /// work.
    fn works_unseen(
        &mut self,
        look: &DeviceLook,
        process: &ProcessLook,
        before: &BTreeMap<(ProcessId, DeviceUuid), Progress>,
    ) -> bool {
        let Place::Inside { slice, attached: Some(slot) } = &process.place else {
            return false;
        };
        let Some(part) = look.parts.iter().find(|part| part.slice.number == slice.number) else { return false };
        // While the slice has the device to itself, launches need no lease and leave nothing in the slot.
        if slice.is_free(part.number) || slice.damage().is_some() {
            return false;
        }
        let Some(progress) = view::progress(slice.region.ledger(), slot.index, part.number) else { return false };
        let key = (process.id, look.device.clone());
        let is_idle = progress.is_drained && before.get(&key) == Some(&progress);
        self.progress.insert(key, progress);
        is_idle && process.busy_percent >= WORK_PERCENT_MIN
    }
}

/// What the processes of a slice use of a device, by the driver's figures.
#[derive(Clone, Copy, Default)]
struct SliceUse {
    processes: u64,
    memory_bytes: u64,
}

/// The use of each slice with processes on a device, by the slice's number. Computed once for all of its processes.
fn uses_of_slices(look: &DeviceLook) -> BTreeMap<u64, SliceUse> {
    let mut uses: BTreeMap<u64, SliceUse> = BTreeMap::new();
    for process in &look.processes {
        if let Place::Inside { slice, .. } = &process.place {
            let of_slice = uses.entry(slice.number).or_default();
            of_slice.processes += 1;
            of_slice.memory_bytes = of_slice.memory_bytes.saturating_add(process.memory_bytes.unwrap_or(0));
        }
    }
    uses
}

/// Findings for the damaged regions of slices on a device. Damage is permanent once seen.
fn damaged_regions(look: &DeviceLook) -> impl Iterator<Item = Finding> {
    look.parts.iter().filter_map(|part| {
        Some(Finding {
            kind: Kind::DamagedRegion,
            slice: Some(part.slice.name.clone()),
            device: look.device.clone(),
            pid: 0,
            command: String::new(),
            memory_bytes: None,
            since: part.slice.damage()?.since,
            stopped: None,
        })
    })
}

/// Bytes of the device that the process's slot holds.
fn held_bytes(look: &DeviceLook, process: &ProcessLook) -> u64 {
    let Place::Inside { slice, attached: Some(slot) } = &process.place else { return 0 };
    let part = look.parts.iter().find(|part| part.slice.number == slice.number);
    part.map_or(0, |part| view::held_bytes_of(slice.region.ledger(), slot.index, part.number))
}

/// Adds the finding's device, process and slice to `event`.
fn event(event: Event, finding: &Finding) -> Event {
    let event = event.of_device(&finding.device).of_process(finding.pid);
    match &finding.slice {
        Some(slice) => event.of_slice(slice),
        None => event,
    }
}

fn report(finding: &Finding) {
    let Finding { kind, slice, device, pid, command, memory_bytes, .. } = finding;
    let (kind, memory) = (kind.as_str(), memory_bytes.map(|bytes| Bytes(bytes).to_string()));
    match slice {
        Some(slice) => warn!(kind, slice, %device, pid, command, memory, "a process gets past its slice"),
        None => info!(kind, %device, pid, command, memory, "a process of no slice uses a device"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_can_only_be_stricter_than_its_node() {
        let (report, stop) = (AuditPolicy::Report, AuditPolicy::Stop);
        for (node, own, expected) in [
            (stop, Some(report), stop),
            (stop, None, stop),
            (report, Some(stop), stop),
            (report, Some(report), report),
            (report, None, report),
        ] {
            let settings = AuditSettings { policy: node, ..AuditSettings::default() };
            let audit = Audit::new(settings, Arc::default());
            assert_eq!(audit.policy_with(own), expected, "the node has {node:?}, its slice {own:?}");
        }
    }
}
