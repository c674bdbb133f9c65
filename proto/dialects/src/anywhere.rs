//! What is certain about a pod before it has a node: whether every node would refuse one of its requests, and whether a
//! request is incomplete.

use crate::dialect::{Count, Dialect, Unit};
use crate::pod::{NodeFacts, Pod};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::systems::elastic_gpu::ELASTIC_GPU;
use crate::systems::kai::KAI_GPU;
use crate::systems::own;
use crate::translate::{Spoken, asks, asks_by_annotations_alone};

impl Pod {
    /// Why every node would refuse the request of the container with this index, whatever its dialects and settings.
    /// `None`: some node may accept it.
    #[must_use]
    pub fn refused_everywhere(&self, index: usize) -> Option<Refusal> {
        let nodes = most_generous();
        let mut telling: Option<Refusal> = None;
        for (dialect, facts) in
            Dialect::ALL.into_iter().flat_map(|dialect| nodes.each_ref().map(|node| (dialect, node)))
        {
            // Aliquot's own dialect never clashes with another one.
            let Ok(spoken) = Spoken::new([dialect]) else { continue };
            match spoken.translate(self, index, facts) {
                Ok(_) | Err(Refusal::Undecided { .. }) => return None,
                Err(refusal) if telling.as_ref().is_none_or(|before| rank(&refusal) < rank(before)) => {
                    telling = Some(refusal);
                }
                Err(_) => {}
            }
        }
        telling
    }

    /// Whether the container with this index asks for devices, in any dialect.
    #[must_use]
    pub fn asks_for_devices(&self, index: usize) -> bool {
        let [node, _] = &most_generous();
        let container = self.containers.get(index);
        container.is_some_and(|container| asks(&Request { pod: self, container, index, node }))
    }

    /// Checks the values of Aliquot's own annotations, for all containers alike.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check_annotations(&self) -> Result<(), Refusal> {
        own::annotated(self).map(drop)
    }

    /// The resource of which the container with this index must also ask for 1, because kubelet hands out nothing for its
    /// request: that has amounts for each device but no number of devices, only names a claim, or is in KAI's annotations.
    /// `None`: the request is complete.
    #[must_use]
    pub fn left_out(&self, index: usize) -> Option<&'static str> {
        let asked = |name: &str| self.containers.get(index).is_some_and(|of| of.resources.contains_key(name));
        if self.elastic_gpu_claim(index).is_some() {
            return (!asked(ELASTIC_GPU)).then_some(ELASTIC_GPU);
        }
        let [facts, _] = most_generous();
        let container = self.containers.get(index)?;
        let request = Request { pod: self, container, index, node: &facts };
        if asks_by_annotations_alone(&request, Dialect::Kai) {
            return (!asked(KAI_GPU)).then_some(KAI_GPU);
        }
        Dialect::ALL.into_iter().find_map(|dialect| {
            let advertised = dialect.advertised(&facts);
            let has_amounts = dialect.counted(&facts).into_iter().any(|counted| {
                !matches!(counted.count, Count::Containers { .. })
                    && container.words().any(|name| name == counted.resource)
            });
            if !has_amounts || advertised.iter().any(|of| asked(of.resource)) {
                return None;
            }
            advertised.into_iter().find(|of| matches!(of.unit, Unit::Slot { .. })).map(|of| of.resource)
        })
    }
}

/// The settings with which one of two nodes accepts everything that any node accepts. They are two because where devices
/// are shared by NVIDIA's words they are not whole.
fn most_generous() -> [NodeFacts; 2] {
    [1, u32::MAX].map(|nvidia_replicas| NodeFacts {
        memory_unit_bytes: 1,
        gpushare_unit_bytes: 1,
        whole_devices: true,
        nvidia_replicas,
        aws_vgpus: u32::MAX,
        ..NodeFacts::default()
    })
}

/// The rank of a refusal: the smallest one tells the most about the fault. The value itself comes first, then two
/// systems in one container, and last that a node does not speak the dialect or offer the resource, because that holds
/// for every node but the right one.
fn rank(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::Value { .. } | Refusal::Together { .. } | Refusal::Alone { .. } | Refusal::Undecided { .. } => 0,
        Refusal::Mixed { .. } => 1,
        Refusal::NotSpoken { .. } | Refusal::NotOffered { .. } => 2,
    }
}
