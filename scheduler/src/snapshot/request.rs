//! Converts requests from and to their entries in a file.

use std::sync::Arc;

use aliquot_scheduler_core::{
    Alternative, Alternatives, Bytes, Constraints, DeviceCore, DeviceLink, DeviceMemory, DeviceRequest, FurtherRequest,
    FurtherRequests, MilliCpu, PlacementRules, Request,
};
use anyhow::{Context, Result, ensure};

use crate::snapshot::amount::{memory, memory_entry, one_of};
use crate::snapshot::constraints::{preference_entries, preferences, term_entry, to_term};
use crate::snapshot::format::{
    AlternativeEntry, AlternativesEntry, FurtherEntry, LinkEntry, NamedRequestEntry, PeersEntry, RequestEntry,
    TolerationEntry,
};

impl RequestEntry {
    pub(super) fn to_request(&self) -> Result<Request> {
        let tolerations = self.tolerations.iter().map(TolerationEntry::to_toleration);
        let request = Request {
            cpu: MilliCpu::new(self.cpu_milli),
            memory: memory(self.memory_bytes, self.memory_gib)?,
            devices: self.devices()?,
            constraints: Constraints {
                models: self.models.iter().cloned().collect(),
                attributes: self.gpu_attributes.clone(),
                labels: self.node_labels.clone(),
                tolerations: tolerations.collect::<Result<_>>().context("tolerations")?,
                node_terms: self.node_terms.iter().map(|entries| to_term(entries)).collect(),
            },
            preferences: preferences(&self.preferred_nodes),
            rules: PlacementRules {
                nvlink: self.nvlink,
                switch: self.switch,
                memory_threshold_percent: self.gpu_memory_threshold_percent,
            },
            further: self.further.as_ref().map(FurtherEntry::to_further).transpose().context("further")?,
            alternatives: self.alternatives.as_ref().map(AlternativesEntry::to_alternatives).transpose()?,
            counted: self.counted.clone(),
            peers: self.peers.as_ref().map(PeersEntry::to_peers).transpose().context("peers")?,
        };
        request.validate()?;
        Ok(request)
    }

    /// The request of an entry that may contain only GPUs.
    fn of_gpus_alone(&self, name: &str) -> Result<Request> {
        let request = self.to_request().with_context(|| format!("request {name:?}"))?;
        let Constraints { models, attributes, .. } = request.constraints.clone();
        let constraints = Constraints { models, attributes, ..Constraints::default() };
        let (devices, further) = (request.devices, request.further.clone());
        let alone = Request { devices, further, constraints, ..Request::default() };
        ensure!(
            request == alone,
            "request {name:?} has fields beside those of its GPUs; move them to the claim itself"
        );
        Ok(request)
    }

    fn devices(&self) -> Result<DeviceRequest> {
        let core = one_of([
            ("gpu_core_percent", self.gpu_core_percent.map(u64::from), 10),
            ("gpu_core_milli", self.gpu_core_milli.map(u64::from), 1),
        ])?;
        let bytes =
            one_of([("gpu_memory_bytes", self.gpu_memory_bytes, 1), ("gpu_memory_gib", self.gpu_memory_gib, 1 << 30)])?;
        let part = one_of([
            ("gpu_memory_percent", self.gpu_memory_percent.map(u64::from), 10),
            ("gpu_memory_milli", self.gpu_memory_milli.map(u64::from), 1),
        ])?;
        // If both keys are given, the error names them; the amounts do not matter here.
        one_of([("an amount of gpu memory", bytes, 0), ("a part of it", part, 0)])?;
        let part_of = |amount: u64| u32::try_from(amount).unwrap_or(u32::MAX);
        let count = match self.gpus {
            Some(count) => count,
            None => u16::from(core.is_some() || bytes.is_some() || part.is_some()),
        };
        if count == 0 {
            return Ok(DeviceRequest::default());
        }
        let said_memory = bytes.map(|bytes| DeviceMemory::Bytes(Bytes::new(bytes)));
        let said_memory = said_memory.or(part.map(|part| DeviceMemory::Thousandths(part_of(part))));
        let core = match (core, said_memory) {
            (Some(core), _) => part_of(core),
            (None, Some(_)) => 0,
            (None, None) => DeviceCore::WHOLE.get(),
        };
        let memory = said_memory.unwrap_or(DeviceMemory::Thousandths(core));
        Ok(DeviceRequest { count, core: DeviceCore::new(core), memory })
    }

    pub(super) fn of(request: &Request) -> Self {
        let (memory_bytes, memory_gib) = memory_entry(request.memory);
        let mut entry = Self {
            cpu_milli: request.cpu.get(),
            memory_bytes,
            memory_gib,
            models: request.constraints.models.iter().cloned().collect(),
            gpu_attributes: request.constraints.attributes.clone(),
            node_labels: request.constraints.labels.clone(),
            tolerations: request.constraints.tolerations.iter().map(TolerationEntry::of).collect(),
            node_terms: request.constraints.node_terms.iter().map(term_entry).collect(),
            preferred_nodes: request.preferences.as_deref().map(preference_entries).unwrap_or_default(),
            counted: request.counted.clone(),
            peers: request.peers.as_deref().map(PeersEntry::of),
            nvlink: request.rules.nvlink,
            switch: request.rules.switch,
            gpu_memory_threshold_percent: request.rules.memory_threshold_percent,
            further: request.further.as_deref().map(FurtherEntry::of),
            alternatives: request.alternatives.as_deref().map(AlternativesEntry::of),
            ..Self::default()
        };
        let devices = &request.devices;
        if devices.count == 0 {
            return entry;
        }
        entry.gpus = Some(devices.count);
        let percent_or_milli = |milli: u32| match milli.is_multiple_of(10) {
            true => (Some(milli / 10), None),
            false => (None, Some(milli)),
        };
        (entry.gpu_core_percent, entry.gpu_core_milli) = percent_or_milli(devices.core.get());
        match devices.memory {
            DeviceMemory::Bytes(Bytes::ZERO) => entry.gpu_memory_bytes = Some(0),
            DeviceMemory::Bytes(bytes) => (entry.gpu_memory_bytes, entry.gpu_memory_gib) = memory_entry(bytes),
            DeviceMemory::Thousandths(part) => {
                (entry.gpu_memory_percent, entry.gpu_memory_milli) = percent_or_milli(part);
            }
        }
        entry
    }
}

impl FurtherEntry {
    fn to_further(&self) -> Result<Arc<FurtherRequests>> {
        let request = |entry: &NamedRequestEntry| {
            let (name, request) = (entry.name.clone(), entry.request.of_gpus_alone(&entry.name)?);
            let is_one = request.further.is_none();
            ensure!(is_one, "request {name:?} contains requests; list them beside it");
            let Constraints { models, attributes, .. } = request.constraints;
            Ok(FurtherRequest { name, devices: request.devices, models, attributes })
        };
        let link = |LinkEntry { requests, property, comparison }: &LinkEntry| DeviceLink {
            requests: requests.clone(),
            property: property.clone(),
            comparison: *comparison,
        };
        Ok(Arc::new(FurtherRequests {
            first_name: self.first.clone(),
            requests: self.requests.iter().map(request).collect::<Result<_>>()?,
            links: self.links.iter().map(link).collect(),
        }))
    }

    fn of(FurtherRequests { first_name, requests, links }: &FurtherRequests) -> Self {
        let request = |FurtherRequest { name, devices, models, attributes }: &FurtherRequest| {
            let constraints =
                Constraints { models: models.clone(), attributes: attributes.clone(), ..Constraints::default() };
            let request = Request { devices: *devices, constraints, ..Request::default() };
            NamedRequestEntry { name: name.clone(), request: RequestEntry::of(&request) }
        };
        let link = |DeviceLink { requests, property, comparison }: &DeviceLink| LinkEntry {
            requests: requests.clone(),
            property: property.clone(),
            comparison: *comparison,
        };
        Self {
            first: first_name.clone(),
            requests: requests.iter().map(request).collect(),
            links: links.iter().map(link).collect(),
        }
    }
}

impl AlternativesEntry {
    fn to_alternatives(&self) -> Result<Arc<Alternatives>> {
        let other = |(place, entry): (u16, &AlternativeEntry)| {
            let request = entry.request.of_gpus_alone(&entry.name).context("alternatives")?;
            let Constraints { models, attributes, .. } = request.constraints;
            Ok(Alternative {
                name: entry.name.clone(),
                rank: entry.rank.unwrap_or(place),
                devices: request.devices,
                models,
                attributes,
                further: request.further,
            })
        };
        let others = (1..).zip(&self.others).map(other).collect::<Result<_>>()?;
        Ok(Arc::new(Alternatives { first_name: self.first.clone(), others }))
    }

    fn of(Alternatives { first_name, others }: &Alternatives) -> Self {
        let other = |(place, other): (u16, &Alternative)| {
            let Alternative { name, rank, devices, models, attributes, further } = other.clone();
            let constraints = Constraints { models, attributes, ..Constraints::default() };
            let request = RequestEntry::of(&Request { devices, further, constraints, ..Request::default() });
            AlternativeEntry { name, rank: Some(rank).filter(|rank| *rank != place), request }
        };
        Self { first: first_name.clone(), others: (1..).zip(others).map(other).collect() }
    }
}
