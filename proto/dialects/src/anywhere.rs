//! What is certain about a pod before it has a node: that no node understands a request of it, and what a request leaves
//! out.

use crate::dialect::{Count, Dialect, Unit};
use crate::pod::{NodeFacts, Pod};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::systems::own;
use crate::translate::{Spoken, asks};

impl Pod {
    /// Why no node ever gives the container with this index what it asks for, whatever dialects and settings nodes have.
    /// `None`: some node may.
    #[must_use]
    pub fn refused_everywhere(&self, index: usize) -> Option<Refusal> {
        let facts = most_generous();
        let mut telling: Option<Refusal> = None;
        for dialect in Dialect::ALL {
            // Aliquot's own dialect and one other clash with nobody.
            let Ok(spoken) = Spoken::new([dialect]) else { continue };
            match spoken.translate(self, index, &facts) {
                Ok(_) => return None,
                Err(refusal) if telling.as_ref().is_none_or(|before| rank(&refusal) < rank(before)) => {
                    telling = Some(refusal);
                }
                Err(_) => {}
            }
        }
        telling
    }

    /// Whether the container with this index asks for devices, in whatever words.
    #[must_use]
    pub fn asks_for_devices(&self, index: usize) -> bool {
        let node = &most_generous();
        let container = self.containers.get(index);
        container.is_some_and(|container| asks(&Request { pod: self, container, index, node }))
    }

    /// Whether the values of Aliquot's own annotations are valid, for whatever containers they are meant.
    ///
    /// # Errors
    /// One that is not.
    pub fn check_annotations(&self) -> Result<(), Refusal> {
        own::annotated(self).map(drop)
    }

    /// The resource of which the container with this index must ask for 1, since kubelet hands out nothing of what it
    /// asks for: amounts for each device, and no number of devices. `None`: nothing is left out.
    #[must_use]
    pub fn left_out(&self, index: usize) -> Option<&'static str> {
        let asked = |name: &str| self.containers.get(index).is_some_and(|of| of.resources.contains_key(name));
        let facts = most_generous();
        Dialect::ALL.into_iter().find_map(|dialect| {
            let advertised = dialect.advertised(&facts);
            let has_amounts = dialect
                .counted(&facts)
                .into_iter()
                .any(|counted| !matches!(counted.count, Count::Containers { .. }) && asked(counted.resource));
            if !has_amounts || advertised.iter().any(|of| asked(of.resource)) {
                return None;
            }
            advertised.into_iter().find(|of| matches!(of.unit, Unit::Slot { .. })).map(|of| of.resource)
        })
    }
}

/// The settings under which a node understands whatever some node understands.
fn most_generous() -> NodeFacts {
    NodeFacts {
        memory_unit_bytes: 1,
        gpushare_unit_bytes: 1,
        whole_devices: true,
        nvidia_replicas: u32::MAX,
        aws_vgpus: u32::MAX,
        ..NodeFacts::default()
    }
}

/// The least says the most about what is wrong: the value itself, then two systems in one container, and last that a
/// node speaks another dialect, which is so for all but one.
fn rank(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::Value { .. } | Refusal::Together { .. } | Refusal::Alone { .. } => 0,
        Refusal::Mixed { .. } => 1,
        Refusal::NotSpoken { .. } => 2,
    }
}
