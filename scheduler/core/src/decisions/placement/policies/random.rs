//! Takes any node that fits: a baseline for other policies.

use crate::decisions::placement::fitting::fitting_devices;
use crate::decisions::placement::policy::{Bid, Choice, Policy, Selection};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// Takes any node that fits, with equal chance, and any device on it. The same seed gives the same choices.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The policy with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }
}

/// The next number of the generator SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A number below `bound`, computed from a random 64-bit number.
fn below(random: u64, bound: u64) -> u64 {
    u64::try_from((u128::from(random) * u128::from(bound)) >> 64).unwrap_or(0)
}

impl Policy for Random {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        let none = Bid { cost: 0, forgone: 0, choice: Choice::Tightest };
        if request.devices.count != 1 {
            return none;
        }
        let fitting = fitting_devices(node, request).count();
        let mut state = self.state;
        let skip = below(next(&mut state), fitting as u64);
        let device = usize::try_from(skip).ok().and_then(|skip| fitting_devices(node, request).nth(skip));
        device.map_or(none, |(index, ..)| Bid { choice: Choice::Device(index), ..none })
    }

    fn selection(&self) -> Selection {
        Selection::Uniform
    }

    fn draw(&mut self, bound: u64) -> u64 {
        below(next(&mut self.state), bound)
    }
}
