//! Claims for devices of other drivers: whole devices and shares of them, by the structured parameters that Kubernetes
//! defines.
//!
//! The core does not know these devices. Pods that ask for the same by such claims, as those of one workload do, are of
//! one *kind*. For each kind and node the books count *places*: how many pods of the kind can get devices there, one
//! after the other. A pod takes one place. Its devices are chosen when it is bound. Several kinds can want the same
//! devices, and several nodes can reach the same ones; then the pod that is bound first gets them.

mod allocation;
mod beside;
mod lacks;
mod owned;
mod searches;
mod shunned;
mod support;
mod uses;

use std::collections::{BTreeMap, BTreeSet};

use super::super::Mirror;
use super::{DeviceClaims, names_of};
use crate::dra::{Ask, DRIVER, DevicesAsk, PoolKey, Selection, Whose};
use crate::pod::PodFacts;

pub(super) use allocation::{Asking, GivenOfOurs};
use beside::Places;
use owned::Owners;
pub(super) use owned::{Owner, Promised};
pub(in super::super) use searches::Refusal;
use searches::Searches;
use shunned::Shunned;

/// When there are so many kinds, those that no pending pod is of are dropped before another one is added.
const KINDS_KEPT: usize = 64;

/// Kinds whose places are counted, at most. Pods of further kinds wait until one of these is needed no more.
const KINDS_MAX: usize = 256;

/// Places that are counted for a kind on a node, at most. A pod that finds all of them taken waits until they are
/// counted again.
const PLACES_MAX: u64 = 64;

/// Trials of a device, after which a search is given up that only counts places. Whenever the devices of a node are used
/// otherwise, its places are counted again, for all kinds. The combinations of a pod's lists share these trials. If no place
/// was found, the search goes on later, see [`Searches`].
const COUNTING_TRIALS_MAX: u32 = 1_000;

/// Each combination of a pod's lists has so many of these trials at least.
const COUNTING_TRIALS_MIN: u32 = 50;

/// A device of a pool.
pub(crate) type DeviceId = (PoolKey, String);

/// What the mirror knows of claims for devices of other drivers.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// By the key that `DeviceClaims::key_of_kind` gives.
    kinds: BTreeMap<String, Kind>,
    kinds_made: u64,
    /// By node, and by the number of a kind. Missing places are counted when the node is reported to the engine.
    places: BTreeMap<String, BTreeMap<u64, Places>>,
    #[cfg(test)]
    counts_made: usize,
    /// By the UID of a pod that waits, the key of its kind.
    kind_of: BTreeMap<String, String>,
    /// Who has what of each device of each pool.
    owners: BTreeMap<PoolKey, BTreeMap<String, Owners>>,
    /// The devices that each has, or has shares of.
    owned: BTreeMap<Owner, BTreeSet<DeviceId>>,
    shunned: Shunned,
    searches: Searches,
}

/// For whose devices a claim asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedOf {
    /// Also if its requests select no device at all: our driver may publish one later.
    Ours,
    Others,
    Both,
}

/// What pods that ask for the same have in common.
#[derive(Debug)]
struct Kind {
    /// The name of a place in the books. Users read it, too.
    name: String,
    number: u64,
    /// Its places are counted.
    is_counted: bool,
    /// The UIDs of the pods of this kind that wait.
    pods: BTreeSet<String>,
    /// What each claim of such a pod asks for.
    asks: Vec<Ask>,
    /// Such a pod has further claims, for devices of our driver alone.
    has_more_of_ours: bool,
    /// The keys of the selections that its requests need.
    selections: BTreeSet<String>,
}

impl Mirror {
    /// What the claims of a pod ask for that are to be allocated with it: those that ask for devices of our driver alone,
    /// and the others.
    fn asks_of(&self, facts: &PodFacts) -> (Vec<Ask>, Vec<Ask>) {
        let claims = names_of(facts).filter_map(|name| self.device_claims.claims.get(&name)).cloned();
        let extended = self.extended_of(facts).ok().flatten().map(|made| made.claim);
        let mut asks = Vec::new();
        let mut seen = BTreeSet::new();
        for claim in claims.chain(extended).filter(|claim| claim.allocation.is_none()) {
            let Ok(ask) = claim.ask else { continue };
            if seen.insert(claim.name) {
                asks.push(ask);
            }
        }
        let (ours, others): (Vec<Ask>, Vec<Ask>) =
            asks.into_iter().partition(|ask| self.device_claims.asked_of(ask) == AskedOf::Ours);
        let in_numbers = |ask: &Ask| self.in_numbers(facts, ask, self.device_claims.asked_of(ask)).into_owned();
        (ours, others.iter().map(in_numbers).collect())
    }

    /// Notes the kinds of changed pods. Places of a new kind are counted on all nodes.
    pub(super) fn learn_kinds(&mut self) {
        let kind_of = |uid: &String| {
            let facts = &self.pods.get(uid)?.facts;
            let is_waiting = facts.scheduler == self.own_name && facts.node.is_none();
            is_waiting.then(|| self.kind_of(facts)).flatten()
        };
        let kinds: Vec<_> = self.changed_pods.iter().map(|uid| (uid.clone(), kind_of(uid))).collect();
        let others = &mut self.device_claims.others;
        for (uid, kind) in kinds {
            others.note_kind(uid, kind);
        }
        let pods = others.count_more_kinds();
        if !pods.is_empty() {
            self.changed_pods.extend(pods);
            self.changed_nodes.extend(self.nodes.keys().cloned());
        }
    }

    /// Forgets of which kind a pod was that is gone.
    pub(in super::super) fn forget_kind_of(&mut self, uid: &str) {
        self.device_claims.others.forget_kind_of(uid);
    }

    /// The kind of a pod, and its key; `None`: it asks other drivers for nothing, or for nothing that can be looked
    /// for.
    fn kind_of(&self, facts: &PodFacts) -> Option<(String, Kind)> {
        let (ours, asks) = self.asks_of(facts);
        if asks.is_empty() {
            return None;
        }
        let (claims, has_more_of_ours) = (&self.device_claims, !ours.is_empty());
        let key = claims.key_of_kind(&asks, has_more_of_ours).ok()?;
        let all = || asks.iter().flat_map(Ask::choices);
        let criteria = all().filter_map(|ask| claims.criteria(ask).ok());
        let selections = criteria.map(|criteria| criteria.key()).collect();
        let of_others = || all().filter(|ask| !claims.is_ours(ask));
        let drivers: BTreeSet<String> = of_others().filter_map(|ask| claims.driver_of(ask)).collect();
        let drivers = drivers.into_iter().collect::<Vec<_>>().join(" and ");
        let classes: BTreeSet<String> = of_others().map(|ask| format!("{:?}", ask.class)).collect();
        let classes = classes.into_iter().collect::<Vec<_>>().join(" and ");
        let mut name = format!("places with devices of {drivers} for DeviceClass {classes}");
        let attributes = claims.compared_with_ours(&asks);
        if !attributes.is_empty() {
            let attributes = attributes.into_iter().collect::<Vec<_>>().join(" and ");
            name = format!("{name} that constraints on {attributes} compare with devices of {DRIVER}");
        }
        let (number, is_counted, pods) = (0, false, BTreeSet::new());
        Some((key, Kind { name, number, is_counted, pods, asks, has_more_of_ours, selections }))
    }

    /// Whether a pod asks other drivers for what no pod has asked for yet: nobody has looked for such devices.
    pub(super) fn is_of_new_kind(&self, facts: &PodFacts) -> bool {
        let kinds = &self.device_claims.others.kinds;
        self.kind_of(facts).is_some_and(|(key, _)| !kinds.contains_key(&key))
    }

    /// Counts the places on a node for the kinds for which they are not known.
    pub(in super::super) fn count_places(&mut self, node: &str) {
        let others = &self.device_claims.others;
        let known = others.places.get(node);
        let known = |kind: &Kind| known.and_then(|known| known.get(&kind.number));
        let is_known = |kind: &&Kind| known(kind).is_some_and(|places| !places.depend_on_room);
        let kinds = others.kinds.values().filter(|kind| kind.is_counted && !is_known(kind));
        let places = kinds.map(|kind| (kind.number, self.places_of(kind, node)));
        let mut counted: Vec<(u64, Places)> = places.collect();
        if !counted.is_empty() {
            let others = &mut self.device_claims.others;
            #[cfg(test)]
            {
                others.counts_made += counted.len();
            }
            let unsolved = counted.iter_mut().flat_map(|(_, places)| &mut places.unsolved);
            unsolved.for_each(|task| others.searches.begin(task));
            others.places.entry(node.to_owned()).or_default().extend(counted);
        }
    }

    /// How many pods of each kind can get devices on a node, as counted, by the name of the kind's place. Kinds without
    /// any are left out.
    pub(in super::super) fn places_on(&self, node: &str) -> BTreeMap<String, u64> {
        let others = &self.device_claims.others;
        let counted = others.places.get(node);
        let places =
            others.kinds.values().filter_map(|kind| Some((kind.name.clone(), counted?.get(&kind.number)?.free)));
        places.filter(|(_, places)| *places > 0).collect()
    }

    /// Has the places on a node counted again: the devices that it reaches have changed, or their use has.
    pub(in super::super) fn forget_places(&mut self, node: &str) {
        self.device_claims.others.places.remove(node);
    }

    /// Has the places on all nodes counted again.
    pub(super) fn forget_all_places(&mut self) {
        let others = &mut self.device_claims.others;
        others.places.clear();
        if !others.kinds.is_empty() {
            self.changed_nodes.extend(self.nodes.keys().cloned());
        }
    }

    /// How often places on a node were counted for a kind.
    #[cfg(test)]
    pub(in super::super) fn counts_made(&self) -> usize {
        self.device_claims.others.counts_made
    }

    /// Whether all places that are known are those that are there.
    #[cfg(test)]
    pub(in super::super) fn knows_right_places(&self) -> bool {
        let others = &self.device_claims.others;
        others.kinds.values().all(|kind| {
            let mut known = others.places.iter().filter_map(|(node, known)| Some((node, known.get(&kind.number)?)));
            known.all(|(node, places)| places.depend_on_room || *places == self.places_of(kind, node))
        })
    }
}

impl Others {
    /// Forgets the kinds that need a selection which is not kept any more.
    pub(super) fn retain(&mut self, selections: &BTreeMap<String, Selection>) {
        self.keep_kinds(|kind| kind.selections.iter().all(|key| selections.contains_key(key)));
    }

    fn keep_kinds(&mut self, is_kept: impl Fn(&Kind) -> bool) {
        let Others { kinds, kind_of, places, .. } = self;
        kinds.retain(|_, kind| is_kept(kind));
        kind_of.retain(|_, key| kinds.contains_key(key));
        let numbers: BTreeSet<u64> = kinds.values().map(|kind| kind.number).collect();
        for of_node in places.values_mut() {
            of_node.retain(|number, _| numbers.contains(number));
        }
    }

    /// Notes the kind of a pod, and the kind's key; `None`: the pod does not wait for devices of other drivers.
    fn note_kind(&mut self, uid: String, kind: Option<(String, Kind)>) {
        let key = kind.as_ref().map(|(key, _)| key);
        if self.kind_of.get(&uid) == key {
            return;
        }
        self.forget_kind_of(&uid);
        let Some((key, kind)) = kind else { return };
        let kinds_made = &mut self.kinds_made;
        let known = self.kinds.entry(key.clone()).or_insert_with(|| {
            *kinds_made += 1;
            Kind { name: format!("{} #{kinds_made}", kind.name), number: *kinds_made, ..kind }
        });
        let is_first = known.pods.is_empty();
        let number = known.number;
        known.pods.insert(uid.clone());
        self.kind_of.insert(uid, key);
        if is_first {
            self.begin_searches_of(number);
        }
    }

    fn forget_kind_of(&mut self, uid: &str) {
        self.forget_unsolved(uid);
        let Some(key) = self.kind_of.remove(uid) else { return };
        let Some(kind) = self.kinds.get_mut(&key) else { return };
        kind.pods.remove(uid);
        // A kind whose places are counted is kept for the next pods that ask for the same.
        if kind.pods.is_empty() && !kind.is_counted {
            self.kinds.remove(&key);
        }
    }

    /// Has the places of kinds counted that are not counted yet, of the oldest ones first. Returns their pods.
    fn count_more_kinds(&mut self) -> BTreeSet<String> {
        if self.kinds.values().all(|kind| kind.is_counted) {
            return BTreeSet::new();
        }
        let counted = |others: &Others| others.kinds.values().filter(|kind| kind.is_counted).count();
        if counted(self) >= KINDS_KEPT {
            self.keep_kinds(|kind| !kind.pods.is_empty());
        }
        let room = KINDS_MAX.saturating_sub(counted(self));
        let mut further: Vec<&mut Kind> = self.kinds.values_mut().filter(|kind| !kind.is_counted).collect();
        further.sort_by_key(|kind| kind.number);
        let mut pods = BTreeSet::new();
        for kind in further.into_iter().take(room) {
            kind.is_counted = true;
            pods.extend(kind.pods.iter().cloned());
        }
        pods
    }
}

impl DeviceClaims {
    pub(super) fn selection(&self, ask: &DevicesAsk) -> Result<&Selection, String> {
        let of_request = |why: String| format!("request {:?}: {why}", ask.name);
        let selection = self.selections.get(&self.criteria(ask).map_err(of_request)?.key());
        selection.ok_or_else(|| of_request("its devices are not selected yet".to_owned()))
    }

    /// The other driver whose devices a request selects; `None`: it selects devices of our driver, or none.
    fn driver_of(&self, ask: &DevicesAsk) -> Option<String> {
        match self.selection(ask).ok()?.whose() {
            Whose::Other(driver) => Some(driver),
            Whose::Ours | Whose::Unknown => None,
        }
    }

    /// Whether a request, or an entry of its list, selects devices of our driver.
    pub(super) fn is_ours(&self, ask: &DevicesAsk) -> bool {
        self.selection(ask).is_ok_and(|selection| selection.whose() == Whose::Ours)
    }

    /// Whether an entry of this list selects no device at all, or its expressions fail, and another one selects devices of
    /// our driver.
    pub(super) fn selects_none_beside_ours(&self, ask: &DevicesAsk, list: &[DevicesAsk]) -> bool {
        let selects_none = |of: &Selection| of.whose() == Whose::Unknown;
        self.selection(ask).is_ok_and(selects_none) && list.iter().any(|other| self.is_ours(other))
    }

    /// For whose devices a claim asks.
    pub(super) fn asked_of(&self, ask: &Ask) -> AskedOf {
        let (mut ours, mut others) = (false, false);
        for choice in ask.choices() {
            match self.selection(choice).map(Selection::whose) {
                Ok(Whose::Ours) => ours = true,
                Ok(Whose::Other(_)) => others = true,
                Ok(Whose::Unknown) | Err(_) => {}
            }
        }
        match (ours, others) {
            (true, true) => AskedOf::Both,
            (false, true) => AskedOf::Others,
            (_, false) => AskedOf::Ours,
        }
    }

    /// A key that is equal for pods that ask for the same. What they call their requests does not matter.
    fn key_of_kind(&self, asks: &[Ask], has_more_of_ours: bool) -> Result<String, String> {
        let of_choice = |ask: &DevicesAsk| {
            let count = (!ask.is_all || self.is_ours(ask)).then_some(ask.count);
            Ok(format!("{count:?} {}", self.criteria(ask)?.key()))
        };
        let of_ask = |ask: &Ask| {
            let requests = ask
                .requests
                .iter()
                .map(|request| request.choices.iter().map(of_choice).collect::<Result<Vec<String>, String>>());
            Ok(format!("{:?} {:?}", requests.collect::<Result<Vec<_>, String>>()?, ask.links))
        };
        let of_asks = asks.iter().map(of_ask).collect::<Result<Vec<String>, String>>()?.join("\n");
        Ok(format!("{has_more_of_ours} {of_asks}"))
    }

    /// The name in the books of a place for a pod that asks for this. `has_more_of_ours`: the pod has further claims, for
    /// devices of our driver alone.
    ///
    /// # Errors
    /// Its places are not counted, because the pod is new, or because those of too many other kinds are.
    pub(super) fn place_for(&self, asks: &[Ask], has_more_of_ours: bool) -> Result<String, String> {
        let kind = self.others.kinds.get(&self.key_of_kind(asks, has_more_of_ours)?);
        match kind {
            Some(kind) if kind.is_counted => Ok(kind.name.clone()),
            Some(_) => Err(format!(
                "the pods that wait for devices of other drivers ask for them in more than {KINDS_MAX} different ways, and \
                 Aliquot's scheduler looks for no more at once: the pod waits until one of these ways is needed no more"
            )),
            None => Err("its devices are not looked for yet".to_owned()),
        }
    }
}
