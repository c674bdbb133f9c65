//! Dynamic resource allocation: the devices that drivers publish in ResourceSlices, and the ResourceClaims that ask for
//! them. Pure.
//!
//! The core knows nothing of CEL, taints of devices or request policies. All that a request asks of a device becomes
//! one [`Selection`]: the set of devices that will do, each with what it would give. The core sees it as an attribute
//! of these devices.

mod capacity;
mod claim;
mod counters;
mod expression;
mod extended;
mod pools;
mod reach;
mod readiness;
mod selection;
mod slices;
mod taint_rule;
mod take;
mod users;
pub(crate) mod whole;

pub(crate) use capacity::{Amounts, amount, consumed, is_overdrawn, is_shared, left, quantity};
pub(crate) use claim::{Allocated, Ask, ClaimFacts, DevicesAsk, Link, Linked, NVLINK_CLIQUE, RequestAsk, expressions};
pub(crate) use counters::{CounterName, Counters, Groups, groups_of, taken_by as counters_taken_by};
pub(crate) use extended::{ANNOTATION as OF_EXTENDED_RESOURCES, Extended, implicit_resource, may_ask};
pub(crate) use pools::{Pool, PoolKey, Pools, compared_value, compared_values, device_specs, hardware_uuid, uuid};
pub(crate) use reach::{Reach, only, selector};
pub(crate) use readiness::{Unready, must_be_ready};
pub(crate) use selection::{Criteria, Found, Selection, USABLE, Whose, unsupported_of_others, untolerated};
pub(crate) use slices::read_slice;
pub(crate) use taint_rule::TaintRule;
pub(crate) use take::{Free, Taken, held, thousandths};
pub(crate) use users::{GroupOwner, User, group_as_user, is_group, pod_as_user};

// The driver whose devices are given out: the node manager's.
pub(crate) use aliquot_api_server::slice_config::DRIVER;

/// The finalizer that keeps an allocated claim from being deleted before it is deallocated.
pub(crate) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// The capacity that is a device's time.
const CORE: &str = "core";
/// The capacity that is a device's memory, in bytes.
const MEMORY: &str = "memory";
