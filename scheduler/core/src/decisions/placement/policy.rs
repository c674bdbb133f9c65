//! The interface of placement policies.

use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::Request;

/// The cost of placing a task on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bid {
    /// The less, the better; below [`Bid::NONE`]. The policy chooses the unit.
    pub cost: i32,
    /// What the node could do before and cannot do afterwards, in the policy's own terms. How much this adds to the
    /// cost depends on the rest of the cluster, so it is asked for at the moment of the decision
    /// ([`Policy::surcharge`]).
    pub forgone: u8,
    /// Which of the node's devices to take.
    pub choice: Choice,
}

impl Bid {
    /// A value above every cost.
    pub const NONE: i32 = i32::MAX;
}

/// Which devices of a node a task takes, among those that its rules allow and prefer ([`PlacementRules`]). If all else
/// is equal, devices of one NUMA node are taken.
///
/// [`PlacementRules`]: crate::PlacementRules
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The devices with the least left afterwards; of equal ones, those of lowest index.
    Tightest,
    /// The devices that leave room for as many more such tasks as possible; of equal ones, the tightest. For requests
    /// for parts of several devices, which must be different devices: the tightest choice could leave one device with
    /// room for two parts.
    Roomiest,
    /// The devices with the most left afterwards; of equal ones, those of lowest index.
    Emptiest,
    /// The device with this index. Only for requests for one device.
    Device(u16),
}

/// How a node is chosen among those that fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// The node with the least cost.
    Least,
    /// Any node, with equal chance.
    Uniform,
}

/// A change of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeChange<'a> {
    /// Its id.
    pub id: NodeId,
    /// The node; `None` if it was removed.
    pub node: Option<&'a Node>,
    /// Whether more than the free amounts may have changed.
    pub spec: bool,
}

/// Decides between nodes that fit.
///
/// A bid may depend only on the request, the node, and what [`Policy::node_changed`] and [`Policy::turnover`] told the
/// policy up to their last answer that all bids have changed: bids are kept until then.
pub trait Policy: Fork + Send + Sync {
    /// The cost of placing one more task with this request on a node that has room for it.
    fn bid(&self, id: NodeId, node: &Node, request: &Request) -> Bid;

    /// What is added to a bid's cost for what is forgone by it, in the present state. For 0, nothing is added.
    fn surcharge(&self, forgone: u8) -> i32 {
        let _ = forgone;
        0
    }

    /// Tells the policy which work is expected from now on. Returns whether the policy depends on that. If so, it has
    /// forgotten all nodes, is told of each of them again, and all bids are computed anew.
    fn expect(&mut self, mix: &Mix) -> bool {
        let _ = mix;
        false
    }

    /// Tells the policy how much of the running work has lately ended, in eighths; 0 as long as no task ends. Returns
    /// whether this has changed all bids.
    fn turnover(&mut self, eighths: u8) -> bool {
        let _ = eighths;
        false
    }

    /// Tells the policy of a node that was added or removed, or that has changed. Returns whether this has changed all
    /// bids.
    fn node_changed(&mut self, change: NodeChange<'_>) -> bool {
        let _ = change;
        false
    }

    /// How a node is chosen among those that fit.
    fn selection(&self) -> Selection {
        Selection::Least
    }

    /// Whether tasks are kept apart on purpose, so that no claims should be moved together.
    fn spreads(&self) -> bool {
        false
    }

    /// A random number below `bound`, which is not 0, from the policy's own generator; for [`Selection::Uniform`].
    fn draw(&mut self, bound: u64) -> u64 {
        let _ = bound;
        0
    }
}

/// Can be copied with everything that it has been told, so that decisions can be tried on the copy. Every policy that
/// is [`Clone`] can.
pub trait Fork {
    /// A copy with the same knowledge.
    fn fork(&self) -> Box<dyn Policy>;
}

impl<P: Policy + Clone + 'static> Fork for P {
    fn fork(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        (**self).fork()
    }
}

impl Policy for Box<dyn Policy> {
    fn bid(&self, id: NodeId, node: &Node, request: &Request) -> Bid {
        (**self).bid(id, node, request)
    }

    fn surcharge(&self, forgone: u8) -> i32 {
        (**self).surcharge(forgone)
    }

    fn expect(&mut self, mix: &Mix) -> bool {
        (**self).expect(mix)
    }

    fn turnover(&mut self, eighths: u8) -> bool {
        (**self).turnover(eighths)
    }

    fn node_changed(&mut self, change: NodeChange<'_>) -> bool {
        (**self).node_changed(change)
    }

    fn selection(&self) -> Selection {
        (**self).selection()
    }

    fn spreads(&self) -> bool {
        (**self).spreads()
    }

    fn draw(&mut self, bound: u64) -> u64 {
        (**self).draw(bound)
    }
}
