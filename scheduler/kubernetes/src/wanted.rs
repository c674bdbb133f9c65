//! What a pod asks for of devices, in the words of the books: one request, or several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Alignment, Comparison, DeviceLink, DeviceProperty, DeviceRequest, FurtherRequest, FurtherRequests, PlacementRules,
    Request,
};

use crate::dra::Link;

/// The devices that a pod asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    devices: DeviceRequest,
    models: BTreeSet<String>,
    attributes: BTreeMap<String, String>,
    rules: PlacementRules,
    further: Option<Arc<FurtherRequests>>,
}

impl Wanted {
    /// These requests, each with what it is a part of: a claim, or a container. A single one has no need of a name.
    pub(crate) fn of(wishes: Vec<(&str, FurtherRequest)>, links: Vec<Link>) -> Wanted {
        let are_several = wishes.len() > 1;
        let mut links: Vec<Link> = links;
        let mut rules = PlacementRules::default();
        if !are_several {
            links.retain(|link| !is_rule(link, &mut rules));
        }
        let of_one = wishes.iter().all(|(of, _)| wishes.first().is_some_and(|(first, _)| first == of));
        let named = wishes.into_iter().map(|(of, wish)| match (of_one, wish.name.is_empty()) {
            (true, false) => wish,
            (_, true) => FurtherRequest { name: of.to_owned(), ..wish },
            (false, false) => FurtherRequest { name: format!("{of}/{}", wish.name), ..wish },
        });
        let mut named = named.collect::<Vec<FurtherRequest>>().into_iter();
        let Some(FurtherRequest { name, devices, models, attributes }) = named.next() else { return Wanted::default() };
        let place = |place: &usize| u16::try_from(*place).unwrap_or(u16::MAX);
        let further = (are_several || !links.is_empty()).then(|| {
            let link = |link: Link| DeviceLink {
                requests: link.requests.iter().map(place).collect(),
                property: link.property,
                comparison: link.comparison,
            };
            let links = links.into_iter().map(link).collect();
            Arc::new(FurtherRequests { first_name: name, requests: named.collect(), links })
        });
        Wanted { devices, models, attributes, rules, further }
    }

    /// The same of devices alone that have this attribute.
    pub(crate) fn with_attribute(mut self, attribute: &str) -> Wanted {
        let demand = || (attribute.to_owned(), "true".to_owned());
        if self.devices.count > 0 {
            self.attributes.extend([demand()]);
        }
        if let Some(further) = &mut self.further {
            for request in &mut Arc::make_mut(further).requests {
                request.attributes.extend([demand()]);
            }
        }
        self
    }

    /// Adds it to what a pod asks for.
    pub(crate) fn add_to(self, request: &mut Request) {
        let Wanted { devices, models, attributes, rules, further } = self;
        (request.devices, request.further) = (devices, further);
        request.constraints.models.extend(models);
        request.constraints.attributes.extend(attributes);
        request.rules = request.rules.stricter(rules);
    }
}

/// Whether a link of the only request says what a rule can say, which is added to the rules then.
fn is_rule(link: &Link, rules: &mut PlacementRules) -> bool {
    match (&link.property, link.comparison) {
        (DeviceProperty::NvlinkGroup, Comparison::Same) => rules.nvlink = Alignment::Required,
        (DeviceProperty::Switch, Comparison::Same) => rules.switch = Alignment::Required,
        // A request's devices are different ones anyway.
        (DeviceProperty::Identity, Comparison::Distinct) => {}
        _ => return false,
    }
    true
}
