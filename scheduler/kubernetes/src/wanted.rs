//! What a pod asks for of devices, in the words of the books: one request, or several, and what will do in their place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Alignment, Alternative, Alternatives, Comparison, DeviceLink, DeviceProperty, DeviceRequest, FurtherRequest,
    FurtherRequests, PlacementRules, Request,
};

use crate::dra::{Link, Linked, NVLINK_CLIQUE};

/// Why lists are refused.
pub(crate) const ASKS_FOR_NONE: &str = "with some entries of its prioritised lists it asks for no device of ours, and with \
                                        others for some; let all entries of a list be for devices of one driver";

/// The devices that a pod asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    devices: DeviceRequest,
    models: BTreeSet<String>,
    attributes: BTreeMap<String, String>,
    rules: PlacementRules,
    further: Option<Arc<FurtherRequests>>,
    alternatives: Option<Arc<Alternatives>>,
}

/// One request of a pod for devices.
pub(crate) struct Wish<'a> {
    /// What it is a part of: a claim, or a container.
    pub(crate) of: &'a str,
    /// What it asks for, or the choices of its prioritised list. A choice with a count of 0 is for devices of other
    /// drivers, which the books do not know.
    pub(crate) choices: Vec<FurtherRequest>,
}

/// An attribute that the devices of a wish need in one combination of choices.
pub(crate) struct Mark {
    /// The wish's place among all wishes.
    pub(crate) wish: usize,
    pub(crate) attribute: String,
    pub(crate) value: String,
}

impl Wanted {
    /// Combines these requests. A single one has no need of a name. The combinations of several lists are in order of
    /// preference, as Kubernetes tries them: each later list varies before the earlier ones do. `marks`: the attributes that
    /// devices need in addition if these choices are taken.
    ///
    /// # Errors
    /// There are more combinations than a task may have choices. Or there are several, and one of them asks for no device
    /// that the books know.
    pub(crate) fn of(
        wishes: Vec<Wish<'_>>,
        links: Vec<Link>,
        marks: impl Fn(&[usize]) -> Vec<Mark>,
    ) -> Result<Wanted, String> {
        let lists = Lists::of(wishes.iter().map(|wish| wish.choices.len()));
        if lists.combinations() > Alternatives::CHOICES_MAX {
            return Err(format!(
                "its prioritised lists, and the numbers of devices that nodes have for allocationMode All, have {} \
                 combinations, and Aliquot's scheduler tries {} at most; give shorter lists, or numbers of devices",
                lists.combinations(),
                Alternatives::CHOICES_MAX
            ));
        }
        let (mut links, mut rules) = (links, PlacementRules::default());
        if let [wish] = &wishes[..]
            && let [only] = &wish.choices[..]
        {
            links.retain(|link| !is_rule(link, only.devices.count, &mut rules));
        }
        let ranks: Vec<Vec<usize>> = wishes.iter().map(|wish| ranks(&wish.choices)).collect();
        let wishes = named(wishes);
        let mut choices = (0..lists.combinations()).filter_map(|number| {
            let choice = lists.choice(number);
            let rank = choice.iter().zip(&ranks).filter_map(|(place, ranks)| ranks.get(*place)).sum::<usize>();
            Some((rank, combined(&wishes, &links, &choice, marks(&choice))?))
        });
        let Some((_, (FurtherRequest { name, devices, models, attributes }, further))) = choices.next() else {
            return Ok(Wanted::default());
        };
        let other = |(rank, (first, further)): (usize, (FurtherRequest, _))| Alternative {
            rank: u16::try_from(rank).unwrap_or(u16::MAX),
            name: first.name,
            devices: first.devices,
            models: first.models,
            attributes: first.attributes,
            further,
        };
        let others: Vec<Alternative> = choices.map(other).collect();
        if others.len() + 1 < lists.combinations() {
            return Err(ASKS_FOR_NONE.to_owned());
        }
        let alternatives = (!others.is_empty()).then(|| Arc::new(Alternatives { first_name: name, others }));
        Ok(Wanted { devices, models, attributes, rules, further, alternatives })
    }

    /// Adds it to what a pod asks for.
    pub(crate) fn add_to(self, request: &mut Request) {
        let Wanted { devices, models, attributes, rules, further, alternatives } = self;
        (request.devices, request.further, request.alternatives) = (devices, further, alternatives);
        request.constraints.models.extend(models);
        request.constraints.attributes.extend(attributes);
        request.rules = request.rules.stricter(rules);
    }
}

/// How many choices each of several requests has. One choice is taken of each.
pub(crate) struct Lists(Vec<usize>);

impl Lists {
    pub(crate) fn of(lengths: impl Iterator<Item = usize>) -> Self {
        Self(lengths.collect())
    }

    pub(crate) fn combinations(&self) -> usize {
        if self.0.is_empty() { 0 } else { self.0.iter().fold(1, |all, length| all.saturating_mul(*length)) }
    }

    /// The place that is taken in each list by the combination of this number.
    pub(crate) fn choice(&self, number: usize) -> Vec<usize> {
        let mut left = number;
        let mut places: Vec<usize> = self
            .0
            .iter()
            .rev()
            .map(|length| {
                let place = left.checked_rem(*length).unwrap_or(0);
                left = left.checked_div(*length).unwrap_or(0);
                place
            })
            .collect();
        places.reverse();
        places
    }
}

/// How far each choice is from the first entry of its list. Choices of one name are of one entry: they differ in the
/// number of devices only.
fn ranks(choices: &[FurtherRequest]) -> Vec<usize> {
    let mut rank = 0;
    let of_choice = |(place, choice): (usize, &FurtherRequest)| {
        let before = place.checked_sub(1).and_then(|before| choices.get(before));
        rank += usize::from(before.is_some_and(|before| before.name != choice.name));
        rank
    };
    choices.iter().enumerate().map(of_choice).collect()
}

/// The choices of each request, with names that tell them apart.
fn named(wishes: Vec<Wish<'_>>) -> Vec<Vec<FurtherRequest>> {
    let of_one = wishes.iter().all(|wish| wishes.first().is_some_and(|first| first.of == wish.of));
    let name = |of: &str, wish: FurtherRequest| match (of_one, wish.name.is_empty()) {
        (true, false) => wish,
        (_, true) => FurtherRequest { name: of.to_owned(), ..wish },
        (false, false) => FurtherRequest { name: format!("{of}/{}", wish.name), ..wish },
    };
    let named = |Wish { of, choices }| choices.into_iter().map(|wish| name(of, wish)).collect();
    wishes.into_iter().map(named).collect()
}

/// What is asked for by these places of the requests' choices: first and further requests. `None`: no device is asked
/// for.
fn combined(
    wishes: &[Vec<FurtherRequest>],
    links: &[Link],
    choice: &[usize],
    marks: Vec<Mark>,
) -> Option<(FurtherRequest, Option<Arc<FurtherRequests>>)> {
    let taken = wishes.iter().zip(choice).map(|(choices, place)| choices.get(*place).cloned());
    let mut taken = taken.collect::<Option<Vec<FurtherRequest>>>()?;
    for Mark { wish, attribute, value } in marks {
        taken.get_mut(wish)?.attributes.insert(attribute, value);
    }
    let is_known = |wish: usize| taken.get(wish).is_some_and(|wish| wish.devices.count > 0);
    // A wish's place among those for devices that the books know.
    let place = |wish: usize| u16::try_from((0..wish).filter(|before| is_known(*before)).count()).ok();
    let is_meant = |linked: &&Linked| linked.choice.is_none_or(|of| choice.get(linked.request) == Some(&of));
    let links = links.iter().filter_map(|link| {
        let (known, unknown): (BTreeSet<usize>, BTreeSet<usize>) =
            link.requests.iter().filter(is_meant).map(|linked| linked.request).partition(|wish| is_known(*wish));
        let devices: usize =
            known.iter().filter_map(|wish| taken.get(*wish)).map(|wish| usize::from(wish.devices.count)).sum();
        // A single known device is compared only with devices that the books do not know. Its mark says that it fits.
        let is_needed = if unknown.is_empty() { !known.is_empty() } else { devices > 1 };
        let requests: BTreeSet<u16> = known.into_iter().filter_map(place).collect();
        let (property, comparison) = (link.property.clone(), link.comparison);
        is_needed.then_some(DeviceLink { requests, property, comparison })
    });
    let links: BTreeSet<DeviceLink> = links.collect();
    let mut known = taken.into_iter().filter(|wish| wish.devices.count > 0);
    let first = known.next()?;
    let requests: Vec<FurtherRequest> = known.collect();
    let are_several = !requests.is_empty() || !links.is_empty();
    let further = are_several.then(|| Arc::new(FurtherRequests { first_name: first.name.clone(), requests, links }));
    Some((first, further))
}

/// Whether a rule can say what a link of the only request says, which is for so many devices. If so, the rule is added
/// to `rules`.
fn is_rule(link: &Link, devices: u16, rules: &mut PlacementRules) -> bool {
    match (&link.property, link.comparison) {
        // A device that is compared with no other one must have a value all the same. No rule says that.
        (_, Comparison::Same) if devices < 2 => return false,
        (DeviceProperty::Attribute(name), Comparison::Same) if name == NVLINK_CLIQUE => {
            rules.nvlink = Alignment::Required;
        }
        (DeviceProperty::Switch, Comparison::Same) => rules.switch = Alignment::Required,
        // A request's devices are different ones anyway.
        (DeviceProperty::Identity, Comparison::Distinct) => {}
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish<'a>(of: &'a str, choices: &[(&str, u16)]) -> Wish<'a> {
        let choice = |(name, devices): &(&str, u16)| FurtherRequest {
            name: (*name).to_owned(),
            devices: DeviceRequest::whole(*devices),
            ..FurtherRequest::default()
        };
        Wish { of, choices: choices.iter().map(choice).collect() }
    }

    fn request(wishes: Vec<Wish<'_>>, links: Vec<Link>) -> Request {
        let mut request = Request::default();
        Wanted::of(wishes, links, |_| Vec::new()).unwrap().add_to(&mut request);
        assert_eq!(request.validate(), Ok(()));
        request
    }

    /// What each choice asks for: names, and numbers of devices.
    fn choices(request: &Request) -> Vec<Vec<(String, u16)>> {
        let wishes = |choice| request.wishes_of(choice);
        let named = |choice| {
            wishes(choice).map(|wish| (wish.name.unwrap_or_default().to_owned(), wish.devices.count)).collect()
        };
        (0..request.choice_count()).map(named).collect()
    }

    fn of(names: &[(&str, u16)]) -> Vec<(String, u16)> {
        names.iter().map(|(name, devices)| ((*name).to_owned(), *devices)).collect()
    }

    #[test]
    fn a_single_list_is_the_choices_of_a_task() {
        let request = request(vec![wish("gpu", &[("a/x", 2), ("a/y", 1)])], Vec::new());
        assert_eq!(choices(&request), [of(&[("a/x", 2)]), of(&[("a/y", 1)])]);
        assert_eq!(request.further, None);
    }

    #[test]
    fn lists_are_combined_and_the_last_varies_first() {
        let wishes =
            vec![wish("c", &[("a/x", 3), ("a/y", 1)]), wish("c", &[("b", 1)]), wish("d", &[("e/x", 2), ("e/y", 1)])];
        let request = request(wishes, Vec::new());
        assert_eq!(
            choices(&request),
            [
                of(&[("c/a/x", 3), ("c/b", 1), ("d/e/x", 2)]),
                of(&[("c/a/x", 3), ("c/b", 1), ("d/e/y", 1)]),
                of(&[("c/a/y", 1), ("c/b", 1), ("d/e/x", 2)]),
                of(&[("c/a/y", 1), ("c/b", 1), ("d/e/y", 1)]),
            ]
        );
        let ranks: Vec<u16> = request.alternatives.unwrap().others.iter().map(|other| other.rank).collect();
        assert_eq!(ranks, [1, 1, 2]);
        let lists = Lists::of([2, 1, 2].into_iter());
        assert_eq!([lists.choice(1), lists.choice(2)], [[0, 0, 1], [1, 0, 0]]);
    }

    #[test]
    fn a_link_on_one_of_a_list_holds_only_if_that_is_taken() {
        let wishes = || vec![wish("c", &[("a/x", 2), ("a/y", 2)]), wish("c", &[("b", 1)])];
        let link = |choice| Link {
            requests: vec![Linked { request: 0, choice }],
            property: DeviceProperty::Switch,
            comparison: Comparison::Same,
        };
        let links = |request: &Request| {
            let others = request.alternatives.as_ref().map(|all| all.others.clone()).unwrap_or_default();
            let others = others.into_iter().map(|other| other.further);
            let further = std::iter::once(request.further.clone()).chain(others);
            further.map(|further| further.map_or(0, |further| further.links.len())).collect::<Vec<usize>>()
        };
        assert_eq!(links(&request(wishes(), vec![link(Some(1))])), [0, 1]);
        assert_eq!(links(&request(wishes(), vec![link(None)])), [1, 1]);
        let alone = request(vec![wish("c", &[("a/x", 2), ("a/y", 2)])], vec![link(Some(0))]);
        assert_eq!((links(&alone), alone.rules), (vec![1, 0], PlacementRules::default()));
    }

    #[test]
    fn a_link_of_the_only_request_is_a_rule_for_two_devices() {
        let link = |property| Link {
            requests: vec![Linked { request: 0, choice: None }],
            property,
            comparison: Comparison::Same,
        };
        let links = || vec![link(DeviceProperty::Switch), link(DeviceProperty::Attribute(NVLINK_CLIQUE.into()))];
        let two = request(vec![wish("c", &[("gpu", 2)])], links());
        assert_eq!((two.rules.nvlink, two.rules.switch), (Alignment::Required, Alignment::Required));
        assert_eq!(two.further, None);
        let one = request(vec![wish("c", &[("gpu", 1)])], links());
        assert_eq!((one.rules, one.further.unwrap().links.len()), (PlacementRules::default(), 2));
    }

    #[test]
    fn more_combinations_than_are_tried_are_refused() {
        let list: Vec<(String, u16)> = (0..8).map(|number| (format!("r/{number}"), 1)).collect();
        let list: Vec<(&str, u16)> = list.iter().map(|(name, devices)| (name.as_str(), *devices)).collect();
        let of = |wishes: Vec<Wish<'_>>| Wanted::of(wishes, Vec::new(), |_| Vec::new());
        assert!(of(vec![wish("c", &list), wish("d", &list)]).is_ok());
        let refused = of(vec![wish("c", &list), wish("d", &list), wish("e", &list[..2])]);
        assert!(refused.unwrap_err().contains("128 combinations"));
    }
}
