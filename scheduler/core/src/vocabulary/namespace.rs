//! Namespaces: what all claims of a namespace may hold together, and what each of them may ask for.
//!
//! A namespace's quota *is* a leaf queue, below the queue that is shared with other namespaces. So there is one set of
//! books, and one set of reasons. The bounds on what a claim may ask for are checked before it waits in any queue.

use std::collections::BTreeMap;

use crate::vocabulary::allowance::Allowance;
use crate::vocabulary::amount::Amount;
use crate::vocabulary::device_request::{DeviceMemory, DeviceRequest, DeviceWish};
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::queue_spec::QueueSpec;
use crate::vocabulary::request::Request;
use crate::vocabulary::resource::Resource;

/// A namespace as it is configured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceSpec {
    /// The name, as claims give it.
    pub name: String,
    /// The queue above its own; `None`: its own queue is at the top.
    pub queue: Option<String>,
    /// Its quota, in each resource's unit: other queues give it back when its claims ask for it. Of resources that are
    /// not named: nothing.
    pub guaranteed: BTreeMap<Resource, u64>,
    /// The most that its claims may hold together, in each resource's unit. Of resources that are not named: no limit.
    pub limit: BTreeMap<Resource, u64>,
    /// What each claim may ask for.
    pub limit_range: LimitRange,
}

/// What one claim of a namespace may ask for, and the defaults for what a claim leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitRange {
    /// CPU, in thousandths of a core.
    pub cpu: ClaimBounds,
    /// Memory of the node, in bytes.
    pub memory: ClaimBounds,
    /// Device time of all its devices together, in thousandths of one device. Claims that ask for no device are not
    /// bounded.
    pub device_core: ClaimBounds,
    /// Memory of all its devices together, in bytes. Claims that ask for no device are not bounded.
    pub device_memory: ClaimBounds,
}

/// Bounds for what one claim asks for of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClaimBounds {
    /// The request of a claim that asks for nothing of it; `None`: the maximum, else the minimum, else nothing.
    pub default: Option<u64>,
    /// The least that a claim may ask for; `None`: no bound.
    pub minimum: Option<u64>,
    /// The most that a claim may ask for; `None`: no bound.
    pub maximum: Option<u64>,
}

/// Why a namespace is refused, or why it does not admit a claim.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NamespaceError {
    /// It is guaranteed more than it may hold.
    #[error(
        "namespace {namespace:?} is guaranteed {}, but limited to {}; raise the limit or guarantee less",
        Amount(resource, *guaranteed),
        Amount(resource, *limit)
    )]
    GuaranteedAboveLimit {
        /// The namespace.
        namespace: String,
        /// The resource that the amounts are of.
        resource: Resource,
        /// The guaranteed amount, in the resource's unit.
        guaranteed: u64,
        /// The limit, in the resource's unit.
        limit: u64,
    },
    /// Two bounds contradict each other.
    #[error(
        "the {lower} of a claim in namespace {namespace:?} is {}, but the {upper} is {}; the {lower} must not exceed \
         the {upper}",
        Amount(resource, *lower_amount),
        Amount(resource, *upper_amount)
    )]
    Contradiction {
        /// The namespace.
        namespace: String,
        /// The resource that the amounts are of.
        resource: Resource,
        /// The name of the bound that must be the lower one.
        lower: &'static str,
        /// Its amount, in the resource's unit.
        lower_amount: u64,
        /// The name of the bound that must be the upper one.
        upper: &'static str,
        /// Its amount, in the resource's unit.
        upper_amount: u64,
    },
    /// A claim asks for too little.
    #[error(
        "the claim asks for {}, the least that namespace {namespace:?} takes is {}; ask for more",
        Amount(resource, *asked),
        Amount(resource, *minimum)
    )]
    BelowMinimum {
        /// The namespace.
        namespace: String,
        /// The resource that the amounts are of.
        resource: Resource,
        /// The amount that the claim asks for, in the resource's unit.
        asked: u64,
        /// The least that the namespace takes.
        minimum: u64,
    },
    /// A claim asks for too much.
    #[error(
        "the claim asks for {}, the most that namespace {namespace:?} allows a claim is {}; ask for less",
        Amount(resource, *asked),
        Amount(resource, *maximum)
    )]
    AboveMaximum {
        /// The namespace.
        namespace: String,
        /// The resource that the amounts are of.
        resource: Resource,
        /// The amount that the claim asks for, in the resource's unit.
        asked: u64,
        /// The most that the namespace allows.
        maximum: u64,
    },
}

/// The prefix of the names of namespaces' queues. No other queue's name begins with it.
const QUEUE_PREFIX: &str = "namespace/";

impl NamespaceSpec {
    /// The name of the queue that holds the namespace's quota.
    #[must_use]
    pub fn queue_name(&self) -> String {
        format!("{QUEUE_PREFIX}{}", self.name)
    }

    /// The namespace that a queue of this name belongs to; `None`: it belongs to no namespace.
    #[must_use]
    pub fn of_queue(queue: &str) -> Option<&str> {
        queue.strip_prefix(QUEUE_PREFIX)
    }

    /// The queue that holds its quota: the quota is what is guaranteed. What is left over below the same parent is
    /// shared equally with all other queues there.
    #[must_use]
    pub fn queue_spec(&self) -> QueueSpec {
        let named = self.guaranteed.keys().chain(self.limit.keys()).cloned();
        let allowance = |resource: &Resource| Allowance {
            quota: Some(self.guaranteed.get(resource).copied().unwrap_or(0)),
            limit: self.limit.get(resource).copied(),
            ..Allowance::UNNAMED
        };
        let allowances = named.map(|resource| (resource.clone(), allowance(&resource))).collect();
        QueueSpec { name: self.queue_name(), parent: self.queue.clone(), allowances, ..QueueSpec::default() }
    }

    /// Checks that its amounts and bounds do not contradict each other.
    ///
    /// # Errors
    /// If more is guaranteed than the limit, or if minimum ≤ default ≤ maximum does not hold.
    pub fn validate(&self) -> Result<(), NamespaceError> {
        for (resource, guaranteed) in &self.guaranteed {
            if let Some(limit) = self.limit.get(resource).filter(|limit| *limit < guaranteed) {
                return Err(NamespaceError::GuaranteedAboveLimit {
                    namespace: self.name.clone(),
                    resource: resource.clone(),
                    guaranteed: *guaranteed,
                    limit: *limit,
                });
            }
        }
        for (resource, ClaimBounds { default, minimum, maximum }) in self.limit_range.by_resource() {
            let pairs = [
                ("minimum", minimum, "default", default),
                ("default", default, "maximum", maximum),
                ("minimum", minimum, "maximum", maximum),
            ];
            for (lower, lower_amount, upper, upper_amount) in pairs {
                if let Some((lower_amount, upper_amount)) = lower_amount.zip(upper_amount)
                    && lower_amount > upper_amount
                {
                    let namespace = self.name.clone();
                    return Err(NamespaceError::Contradiction {
                        namespace,
                        resource,
                        lower,
                        lower_amount,
                        upper,
                        upper_amount,
                    });
                }
            }
        }
        Ok(())
    }

    /// Fills in the namespace's defaults where a claim's request asks for nothing. `device_memory` is the least and the
    /// greatest memory of the devices that the request admits, to turn parts of a device into bytes. `None`: no such
    /// device is known, and then requests for parts of a device's memory are not checked.
    ///
    /// # Errors
    /// If it asks for less than the namespace's minimum of a resource, or more than the maximum.
    pub fn apply(&self, request: &Request, device_memory: Option<(Bytes, Bytes)>) -> Result<Request, NamespaceError> {
        let range = &self.limit_range;
        let mut request = request.clone();
        if let Some(default) = range.cpu.default_amount().filter(|_| request.cpu == MilliCpu::ZERO) {
            request.cpu = MilliCpu::new(default);
        }
        if let Some(default) = range.memory.default_amount().filter(|_| request.memory == Bytes::ZERO) {
            request.memory = Bytes::new(default);
        }
        self.check(Resource::Cpu, range.cpu, request.cpu.get(), request.cpu.get())?;
        self.check(Resource::Memory, range.memory, request.memory.get(), request.memory.get())?;
        if request.devices.count == 0 {
            return Ok(request);
        }
        for choice in 0..request.choice_count() {
            // With several device requests no default for devices applies: each of them says itself what it wants.
            if let [devices] = &mut request.devices_mut(choice)[..] {
                range.complete(devices);
            }
            self.check_devices(request.wishes_of(choice), device_memory)?;
        }
        Ok(request)
    }

    /// Whether a claim may ask for devices like this.
    fn check_devices<'a>(
        &self,
        mut wishes: impl Iterator<Item = DeviceWish<'a>> + Clone,
        device_memory: Option<(Bytes, Bytes)>,
    ) -> Result<(), NamespaceError> {
        let range = &self.limit_range;
        let core = wishes.clone().map(|wish| wish.devices.total_core()).sum();
        self.check(Resource::DeviceCore, range.device_core, core, core)?;
        let memory = |wish: DeviceWish<'_>| {
            let each = match (wish.devices.memory, device_memory) {
                (DeviceMemory::Bytes(bytes), _) => Some((bytes, bytes)),
                (part, Some((least, most))) => Some((part.on(least), part.on(most))),
                (DeviceMemory::Thousandths(_), None) => None,
            };
            let all = |each: Bytes| each.get().saturating_mul(u64::from(wish.devices.count));
            each.map(|(least, most)| (all(least), all(most)))
        };
        let memory = wishes.by_ref().map(memory).try_fold((0, 0), |(least, most): (u64, u64), of| {
            of.map(|(of_least, of_most)| (least.saturating_add(of_least), most.saturating_add(of_most)))
        });
        if let Some((least, most)) = memory {
            self.check(Resource::DeviceMemory, range.device_memory, least, most)?;
        }
        Ok(())
    }

    /// Checks an amount of which only its bounds are known: it is between `least` and `most`.
    fn check(&self, resource: Resource, bounds: ClaimBounds, least: u64, most: u64) -> Result<(), NamespaceError> {
        let namespace = || self.name.clone();
        if let Some(minimum) = bounds.minimum.filter(|minimum| least < *minimum) {
            return Err(NamespaceError::BelowMinimum { namespace: namespace(), resource, asked: least, minimum });
        }
        if let Some(maximum) = bounds.maximum.filter(|maximum| most > *maximum) {
            return Err(NamespaceError::AboveMaximum { namespace: namespace(), resource, asked: most, maximum });
        }
        Ok(())
    }
}

impl LimitRange {
    /// Fills in the defaults where a device request asks for nothing.
    fn complete(&self, devices: &mut DeviceRequest) {
        let count = u64::from(devices.count.max(1));
        if let Some(default) = self.device_core.default_amount().filter(|_| devices.core == DeviceCore::ZERO) {
            let each = (default / count).min(u64::from(DeviceCore::WHOLE.get()));
            devices.core = DeviceCore::new(u32::try_from(each).unwrap_or(u32::MAX));
        }
        let asks_for_memory =
            !matches!(devices.memory, DeviceMemory::Bytes(Bytes::ZERO) | DeviceMemory::Thousandths(0));
        if let Some(default) = self.device_memory.default_amount().filter(|_| !asks_for_memory) {
            devices.memory = DeviceMemory::Bytes(Bytes::new(default / count));
        }
    }

    fn by_resource(&self) -> [(Resource, ClaimBounds); 4] {
        [
            (Resource::Cpu, self.cpu),
            (Resource::Memory, self.memory),
            (Resource::DeviceCore, self.device_core),
            (Resource::DeviceMemory, self.device_memory),
        ]
    }
}

impl ClaimBounds {
    fn default_amount(&self) -> Option<u64> {
        self.default.or(self.maximum).or(self.minimum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn bounds(default: Option<u64>, minimum: Option<u64>, maximum: Option<u64>) -> ClaimBounds {
        ClaimBounds { default, minimum, maximum }
    }

    fn namespace(limit_range: LimitRange) -> NamespaceSpec {
        NamespaceSpec { name: "team".to_owned(), limit_range, ..NamespaceSpec::default() }
    }

    fn devices(count: u16, core: u32, memory: DeviceMemory) -> Request {
        let devices = DeviceRequest { count, core: DeviceCore::new(core), memory };
        Request { devices, ..Request::default() }
    }

    #[test]
    fn a_quota_of_8_guaranteed_and_32_at_most_is_a_queue_of_quota_8_and_limit_32() {
        let spec = NamespaceSpec {
            name: "team".to_owned(),
            queue: Some("research".to_owned()),
            guaranteed: BTreeMap::from([(Resource::DeviceCore, 8000)]),
            limit: BTreeMap::from([(Resource::DeviceCore, 32_000), (Resource::Cpu, 64_000)]),
            limit_range: LimitRange::default(),
        };
        let queue = spec.queue_spec();
        assert_eq!((queue.name.as_str(), queue.parent.as_deref()), ("namespace/team", Some("research")));
        let allowance = |resource| queue.allowances.get(&resource).map(|allowance| (allowance.quota, allowance.limit));
        assert_eq!(allowance(Resource::DeviceCore), Some((Some(8000), Some(32_000))));
        assert_eq!(allowance(Resource::Cpu), Some((Some(0), Some(64_000))));
        assert_eq!(allowance(Resource::Memory), None);
        assert_eq!(spec.validate(), Ok(()));
    }

    #[test]
    fn what_a_claim_does_not_say_is_the_default_else_the_maximum_else_the_minimum() {
        let range = LimitRange {
            cpu: bounds(Some(500), Some(100), Some(4000)),
            memory: bounds(None, Some(GIB), Some(8 * GIB)),
            device_core: bounds(None, Some(100), None),
            device_memory: bounds(Some(4 * GIB), None, None),
        };
        let request = namespace(range).apply(&devices(1, 0, DeviceMemory::default()), None).unwrap();
        assert_eq!((request.cpu, request.memory), (MilliCpu::new(500), Bytes::new(8 * GIB)));
        assert_eq!(request.devices.core, DeviceCore::new(100));
        assert_eq!(request.devices.memory, DeviceMemory::Bytes(Bytes::new(4 * GIB)));
    }

    #[test]
    fn what_a_claim_says_stays_as_it_is() {
        let range = LimitRange {
            cpu: bounds(Some(500), Some(100), Some(4000)),
            device_core: bounds(Some(300), None, None),
            device_memory: bounds(Some(GIB), None, Some(10 * GIB)),
            ..LimitRange::default()
        };
        let asked = Request { cpu: MilliCpu::new(100), ..devices(2, 250, DeviceMemory::Thousandths(100)) };
        let sizes = Some((Bytes::new(16 * GIB), Bytes::new(40 * GIB)));
        assert_eq!(namespace(range).apply(&asked, sizes), Ok(asked.clone()));
        assert_eq!(namespace(LimitRange::default()).apply(&asked, None), Ok(asked));
    }

    #[test]
    fn a_default_for_devices_is_divided_among_them_and_makes_no_claim_ask_for_one() {
        let range = LimitRange {
            device_core: bounds(Some(1500), None, None),
            device_memory: bounds(Some(9 * GIB), Some(GIB), None),
            ..LimitRange::default()
        };
        let three = namespace(range).apply(&devices(3, 0, DeviceMemory::Thousandths(0)), None).unwrap();
        assert_eq!(three.devices.core, DeviceCore::new(500));
        assert_eq!(three.devices.memory, DeviceMemory::Bytes(Bytes::new(3 * GIB)));
        let one = namespace(range).apply(&devices(1, 0, DeviceMemory::default()), None).unwrap();
        assert_eq!(one.devices.core, DeviceCore::WHOLE, "of one device there is no more");
        assert_eq!(namespace(range).apply(&Request::default(), None), Ok(Request::default()));
    }

    #[test]
    fn too_little_and_too_much_are_refused_with_both_numbers_and_what_to_do() {
        let range = LimitRange {
            cpu: bounds(None, Some(500), Some(4000)),
            device_core: bounds(None, None, Some(1500)),
            ..LimitRange::default()
        };
        let refused = |request: &Request| namespace(range).apply(request, None).unwrap_err().to_string();
        let little = Request { cpu: MilliCpu::new(250), ..Request::default() };
        assert_eq!(
            refused(&little),
            "the claim asks for 0.25 CPU cores, the least that namespace \"team\" takes is 0.5 CPU cores; ask for more"
        );
        let much = Request { cpu: MilliCpu::new(500), ..devices(2, 800, DeviceMemory::default()) };
        assert_eq!(
            refused(&much),
            "the claim asks for 160 % gpu-core, the most that namespace \"team\" allows a claim is 150 % gpu-core; ask \
             for less"
        );
    }

    #[test]
    fn a_part_of_a_device_is_held_against_the_maximum_by_the_largest_and_the_minimum_by_the_smallest_device() {
        let range = LimitRange { device_memory: bounds(None, Some(4 * GIB), Some(20 * GIB)), ..LimitRange::default() };
        let sizes = Some((Bytes::new(16 * GIB), Bytes::new(80 * GIB)));
        let apply = |part, sizes| namespace(range).apply(&devices(1, 100, DeviceMemory::Thousandths(part)), sizes);
        assert!(matches!(apply(300, sizes), Err(NamespaceError::AboveMaximum { asked, .. }) if asked > 23 * GIB));
        assert!(matches!(apply(200, sizes), Err(NamespaceError::BelowMinimum { asked, .. }) if asked < 4 * GIB));
        assert!(apply(250, sizes).is_ok());
        assert!(apply(1000, None).is_ok(), "nothing is known of devices");
    }

    #[test]
    fn a_namespace_that_contradicts_itself_is_refused() {
        let mut spec = namespace(LimitRange::default());
        spec.guaranteed.insert(Resource::DeviceCore, 9000);
        spec.limit.insert(Resource::DeviceCore, 8000);
        assert_eq!(
            spec.validate().unwrap_err().to_string(),
            "namespace \"team\" is guaranteed 900 % gpu-core, but limited to 800 % gpu-core; raise the limit or \
             guarantee less"
        );
        for (contradiction, said) in [
            (bounds(Some(1000), Some(2000), None), "the minimum must not exceed the default"),
            (bounds(Some(3000), None, Some(2000)), "the default must not exceed the maximum"),
            (bounds(None, Some(3000), Some(2000)), "the minimum must not exceed the maximum"),
        ] {
            let error = namespace(LimitRange { cpu: contradiction, ..LimitRange::default() }).validate().unwrap_err();
            assert!(error.to_string().ends_with(said), "{error}");
        }
        let in_order = LimitRange { cpu: bounds(Some(2), Some(1), Some(3)), ..LimitRange::default() };
        assert_eq!(namespace(in_order).validate(), Ok(()));
    }
}
