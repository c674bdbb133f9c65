//! What a placement policy is.

use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::Request;

/// What it would cost to place a task on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bid {
    /// The less the better; below [`Bid::NONE`]. The unit is the policy's.
    pub cost: i32,
    /// What the node could do before and cannot do afterwards, in the policy's own terms: what this adds to the cost
    /// depends on the rest of the cluster, and is asked for at the moment of the decision ([`Policy::surcharge`]).
    pub forgone: u8,
    /// The devices to take.
    pub choice: Choice,
}

impl Bid {
    /// More than any cost.
    pub const NONE: i32 = i32::MAX;
}

/// Which devices of a node a task takes, of those that its rules allow and prefer ([`PlacementRules`]). Where all else
/// is equal, those of one NUMA node.
///
/// [`PlacementRules`]: crate::PlacementRules
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Those with the least left afterwards, among equals those of lowest index.
    Tightest,
    /// Those after which as many more such tasks have room as possible, among these the tightest. For parts of several
    /// devices, which must be different ones: the tightest alone would leave one device with room for two parts.
    Roomiest,
    /// Those with the most left afterwards, among equals those of lowest index.
    Emptiest,
    /// The one with this index; only for requests of one device.
    Device(u16),
}

/// How a node is taken from among those that fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// The one with the least cost.
    Least,
    /// Any of them with equal chance.
    Uniform,
}

/// What has happened to a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeChange<'a> {
    /// Its id.
    pub id: NodeId,
    /// The node; `None` if it was removed.
    pub node: Option<&'a Node>,
    /// Whether more may have changed than what is free.
    pub spec: bool,
}

/// Decides between nodes that fit.
///
/// A bid may depend on nothing but the request, the node and what the policy was told in [`Policy::node_changed`]
/// and [`Policy::turnover`] before it last answered that all bids have changed: bids are kept until then.
pub trait Policy: Fork + Send + Sync {
    /// What it would cost to place one more task of this request on a node that has room for it.
    fn bid(&self, id: NodeId, node: &Node, request: &Request) -> Bid;

    /// What is added to the cost of a bid for what is forgone by it, as things are now. Nothing is added for 0.
    fn surcharge(&self, forgone: u8) -> i32 {
        let _ = forgone;
        0
    }

    /// Is told what work is expected from now on. Returns whether the policy depends on that; then it has forgotten all
    /// nodes, is told of each of them again, and bids are made anew.
    fn expect(&mut self, mix: &Mix) -> bool {
        let _ = mix;
        false
    }

    /// Is told how much of what was placed has lately ended, in eighths: 0 as long as nothing ends. Returns whether all
    /// bids have changed by this.
    fn turnover(&mut self, eighths: u8) -> bool {
        let _ = eighths;
        false
    }

    /// Is told of each node that was added, removed, or has changed. Returns whether all bids have changed by this.
    fn node_changed(&mut self, change: NodeChange<'_>) -> bool {
        let _ = change;
        false
    }

    /// How nodes are taken.
    fn selection(&self) -> Selection {
        Selection::Least
    }

    /// Whether tasks are kept apart on purpose, so that nobody should move them together.
    fn spreads(&self) -> bool {
        false
    }

    /// A number below `bound`, which is not 0, from the policy's own source of chance; for [`Selection::Uniform`].
    fn draw(&mut self, bound: u64) -> u64 {
        let _ = bound;
        0
    }
}

/// Can be copied with all that it has been told, so that something can be tried beside what really happens. Every
/// policy that is [`Clone`] can.
pub trait Fork {
    /// The copy.
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
