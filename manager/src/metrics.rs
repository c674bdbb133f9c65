//! Metrics for Prometheus: the use of slices, and the work of the manager. They are computed at each scrape, so they
//! cost nothing while no scraper asks.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicI64, AtomicU64};

use aliquot_node::{PartUsage, SliceUsage};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::inventory::Health;
use crate::manager::Manager;
use crate::measure::{self, Now};

mod consumer;
mod histogram;
mod http;
use consumer::{Consumer, OnlyConsumer};
use histogram::Histograms;
pub(crate) use http::serve;

/// The media type of the text that [`text`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPart {
    slice: String,
    device: String,
    #[prometheus(flatten)]
    consumer: OnlyConsumer,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfSlice {
    slice: String,
    #[prometheus(flatten)]
    consumer: OnlyConsumer,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfConsumer {
    slice: String,
    #[prometheus(flatten)]
    consumer: Consumer,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfDevice {
    device: String,
    index: u32,
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfFinding {
    slice: String,
    device: String,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

type Seconds = Counter<f64, AtomicU64>;
type Level = Gauge<i64, AtomicI64>;
type Ratio = Gauge<f64, AtomicU64>;

/// The current metrics, in the OpenMetrics text format.
#[must_use]
pub(crate) fn text(manager: &Manager) -> String {
    let mut registry = Registry::with_prefix("aliquot");
    slices(&mut registry, manager);
    devices(&mut registry, manager);
    audit(&mut registry, manager);
    own(&mut registry, manager);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn slices(registry: &mut Registry, manager: &Manager) {
    let inventory = manager.devices().known().inventory;
    let now = Now::read();
    let usage: Vec<SliceUsage> = measure::usage(&manager.live().all(), &inventory, now);
    let parts: Vec<(OfPart, &PartUsage)> = usage
        .iter()
        .flat_map(|slice| slice.parts.iter().map(move |part| (slice, part)))
        .map(|(slice, part)| {
            let (device, consumer) = (part.device_uuid.clone(), OnlyConsumer::of(&slice.consumers));
            (OfPart { slice: slice.name.clone(), device, consumer }, part)
        })
        .collect();
    let consumers: BTreeMap<&str, OnlyConsumer> =
        usage.iter().map(|slice| (slice.name.as_str(), OnlyConsumer::of(&slice.consumers))).collect();
    let of_slice =
        |name: &str| OfSlice { slice: name.to_owned(), consumer: consumers.get(name).cloned().unwrap_or_default() };

    let ratio = |value: fn(&PartUsage) -> u32| {
        let family = Family::<OfPart, Ratio>::default();
        for (labels, part) in &parts {
            family.get_or_create(labels).set(f64::from(value(part)) / 100.0);
        }
        family
    };
    let seconds = |value: fn(&PartUsage) -> u64| {
        let family = Family::<OfPart, Seconds>::default();
        for (labels, part) in &parts {
            family.get_or_create(labels).inc_by(value(part) as f64 / 1e9);
        }
        family
    };
    let count = |value: fn(&PartUsage) -> u64| {
        let family = Family::<OfPart, Counter>::default();
        for (labels, part) in &parts {
            family.get_or_create(labels).inc_by(value(part));
        }
        family
    };
    let level = |value: fn(&PartUsage) -> u64| {
        let family = Family::<OfPart, Level>::default();
        for (labels, part) in &parts {
            family.get_or_create(labels).set(i64::try_from(value(part)).unwrap_or(i64::MAX));
        }
        family
    };
    let (host_limit, host_used, host_peak, host_refused) = (
        Family::<OfSlice, Level>::default(),
        Family::<OfSlice, Level>::default(),
        Family::<OfSlice, Level>::default(),
        Family::<OfSlice, Counter>::default(),
    );
    for slice in &usage {
        let (labels, host) = (of_slice(&slice.name), slice.host_memory);
        for (family, bytes) in
            [(&host_limit, host.limit_bytes), (&host_used, host.used_bytes), (&host_peak, host.peak_bytes)]
        {
            family.get_or_create(&labels).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        host_refused.get_or_create(&labels).inc_by(host.refused);
    }
    let registry = registry.sub_registry_with_prefix("slice");
    registry.register(
        "core_request_ratio",
        "Guaranteed share of the device's time",
        ratio(|part| part.core_request_percent),
    );
    registry.register(
        "core_limit_ratio",
        "Share of the device's time that is never exceeded",
        ratio(|part| part.core_limit_percent),
    );
    registry.register_with_unit("core_used", "Device time used", Unit::Seconds, seconds(|part| part.core_used_ns));
    registry.register_collector(Box::new(Histograms {
        name: "lease_wait",
        help: "Waits for leases, from the first thread's wait to the grant.",
        of: parts.iter().map(|(labels, part)| (labels.clone(), part.lease_waits.clone())).collect(),
    }));
    registry.register("leases", "Leases granted, without renewals", count(|part| part.leases));
    registry.register_with_unit(
        "throttled",
        "Time that threads waited in launches, of all threads together",
        Unit::Seconds,
        seconds(|part| part.throttled_ns),
    );
    registry.register_with_unit(
        "overrun",
        "Device time that work outlasted its leases by",
        Unit::Seconds,
        seconds(|part| part.overrun_ns),
    );
    registry.register("overruns", "Leases that work outlasted", count(|part| part.overruns));
    registry.register("launches", "Launches, counted at progress markers", count(|part| part.launches));
    registry.register("copies", "Copies and memsets", count(|part| part.copies));
    registry.register_with_unit(
        "copied",
        "Bytes that copies and memsets moved",
        Unit::Bytes,
        count(|part| part.copied_bytes),
    );
    registry.register_with_unit(
        "copy",
        "Time that threads waited for copies and memsets",
        Unit::Seconds,
        seconds(|part| part.copy_ns),
    );
    registry.register(
        "memory_refused",
        "Requests for memory refused because of the limit",
        count(|part| part.memory.refused),
    );
    registry.register_with_unit(
        "memory_limit",
        "Memory that is never exceeded",
        Unit::Bytes,
        level(|part| part.memory.limit_bytes),
    );
    registry.register_with_unit("memory_used", "Memory in use", Unit::Bytes, level(|part| part.memory.used_bytes));
    registry.register_with_unit(
        "memory_peak",
        "The most memory that was in use",
        Unit::Bytes,
        level(|part| part.memory.peak_bytes),
    );
    registry.register_with_unit(
        "memory_overhead",
        "Memory of contexts and modules, part of the memory in use",
        Unit::Bytes,
        level(|part| part.memory_overhead_bytes),
    );

    registry.register_with_unit(
        "host_memory_limit",
        "Page-locked host memory that is never exceeded; 0: no limit",
        Unit::Bytes,
        host_limit,
    );
    registry.register_with_unit("host_memory_used", "Page-locked host memory in use", Unit::Bytes, host_used);
    registry.register_with_unit(
        "host_memory_peak",
        "The most page-locked host memory that was in use",
        Unit::Bytes,
        host_peak,
    );
    registry.register(
        "host_memory_refused",
        "Requests for page-locked host memory refused because of the limit",
        host_refused,
    );

    let damaged = Family::<OfSlice, Level>::default();
    for live in manager.live().all() {
        damaged.get_or_create(&of_slice(&live.name)).set(live.damage().is_some().into());
    }
    registry.register("damaged", "1 if the slice's region is damaged, and the slice gets nothing more", damaged);
    let (processes, healthy) = (Family::<OfSlice, Level>::default(), Family::<OfSlice, Level>::default());
    for view in manager.list() {
        let labels = of_slice(&view.slice.name);
        processes.get_or_create(&labels).set(i64::try_from(view.processes).unwrap_or(i64::MAX));
        healthy.get_or_create(&labels).set(view.problem.is_none().into());
    }
    registry.register("processes", "Processes attached", processes);
    registry.register("healthy", "1 if nothing is wrong with the slice", healthy);

    let info = Family::<OfConsumer, Level>::default();
    for (slice, consumer) in usage.iter().flat_map(|slice| slice.consumers.iter().map(move |one| (slice, one))) {
        info.get_or_create(&OfConsumer { slice: slice.name.clone(), consumer: consumer.into() }).set(1);
    }
    registry.register("consumer_info", "1 for each container of a pod that runs in the slice", info);
}

fn devices(registry: &mut Registry, manager: &Manager) {
    let (inventory, slices) = manager.given();
    let (core, memory_given, memory, healthy) = (
        Family::<OfDevice, Ratio>::default(),
        Family::<OfDevice, Level>::default(),
        Family::<OfDevice, Level>::default(),
        Family::<OfDevice, Level>::default(),
    );
    for device in &inventory.devices {
        let labels = OfDevice { device: device.uuid.to_string(), index: device.index, model: device.model.clone() };
        let given = slices.given(&device.uuid, None);
        core.get_or_create(&labels).set(f64::from(given.core_request_percent) / 100.0);
        memory_given.get_or_create(&labels).set(i64::try_from(given.memory_bytes).unwrap_or(i64::MAX));
        memory.get_or_create(&labels).set(i64::try_from(device.memory_bytes).unwrap_or(i64::MAX));
        healthy.get_or_create(&labels).set((device.health == Health::Healthy).into());
    }
    let registry = registry.sub_registry_with_prefix("device");
    registry.register("core_given_ratio", "Share of the device's time that is guaranteed to slices", core);
    registry.register_with_unit("memory_given", "Memory given to slices", Unit::Bytes, memory_given);
    registry.register_with_unit("memory", "Memory of the device", Unit::Bytes, memory);
    registry.register("healthy", "1 if the device can be given out", healthy);
}

fn audit(registry: &mut Registry, manager: &Manager) {
    let findings = Family::<OfFinding, Level>::default();
    for finding in manager.audit().findings().into_iter().filter(|finding| finding.stopped.is_none()) {
        let (slice, device) = (finding.slice.unwrap_or_default(), finding.device.to_string());
        findings.get_or_create(&OfFinding { slice, device, kind: finding.kind.as_str() }).inc();
    }
    let stopped: Counter = Counter::default();
    stopped.inc_by(manager.audit().stopped());
    let registry = registry.sub_registry_with_prefix("audit");
    let help = "Processes that get past their slice now, or use a device without one (slice empty)";
    registry.register("findings", help, findings);
    registry.register("processes_stopped", "Processes stopped by the audit's policy", stopped);
}

fn own(registry: &mut Registry, manager: &Manager) {
    let registry = registry.sub_registry_with_prefix("manager");
    let build = Family::<Build, Level>::default();
    build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
    registry.register("build_info", "Version of the manager", build);
    let counters = manager.attach().counters();
    for (name, help, counter) in [
        ("processes_attached", "Processes taken in", &counters.attached),
        ("processes_reclaimed", "Processes of which what they held was given back", &counters.reclaimed),
        ("messages_dropped", "Messages of processes that were not what they should be", &counters.dropped),
        ("floods", "Times that a slice's socket was left alone because too much came from it", &counters.floods),
    ] {
        let total: Counter = Counter::default();
        total.inc_by(counter.load(Ordering::Relaxed));
        registry.register(name, help, total);
    }
}
