//! The bids of one class on all nodes, kept so that the least is found without a look at each node.

use crate::decisions::placement::policy::Bid;

/// Nodes in a block, and blocks in a superblock: the number of bits of a word.
const FAN_OUT: usize = 64;
/// Nodes whose costs and groups fit into 64 bytes.
const IN_LINE: usize = 12;
/// The cost in place of a missing bid.
const NONE: i32 = Bid::NONE;

/// Costs by node, with a lower bound for each block of nodes and for each superblock of blocks. Nodes with the same
/// *forgone* (see [`Bid::forgone`]) form a group with its own tables: the surcharge for what is forgone differs from
/// decision to decision, but is the same for all nodes of a group.
///
/// When a bid goes or becomes dearer, the bounds stay as they are. They are raised when the least is looked for and
/// their block is not as good as its bound says. For most blocks that never happens, so most changes need not look at
/// the bid as it was.
#[derive(Clone, Debug, Default)]
pub(crate) struct BidIndex {
    /// Nodes with a bid, one bit each and one word for each block. The bids of many classes do not fit into a
    /// processor's caches, but these words do, and most nodes have no bid.
    present: Vec<u64>,
    lines: Vec<Line>,
    /// The number of nodes that there is room for.
    nodes: usize,
    groups: Vec<BidGroup>,
}

/// The bids of [`IN_LINE`] nodes. The bids of many classes are mostly in no cache: so a bid's cost and group are in one
/// line of the processor's caches, and not in two.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Line {
    /// The costs of nodes with a bid. The values of other nodes mean nothing.
    costs: [i32; IN_LINE],
    /// The group number of each node with a bid.
    group_of: [u8; IN_LINE],
}

impl Line {
    const EMPTY: Self = Self { costs: [NONE; IN_LINE], group_of: [0; IN_LINE] };
}

/// A node's cost and the number of its group.
struct Entry {
    cost: i32,
    group: u8,
}

#[derive(Clone, Debug)]
struct BidGroup {
    forgone: u8,
    /// No bid of the group in a block costs less than this; [`NONE`]: there is no such bid.
    blocks: Vec<i32>,
    /// No value of `blocks` in a superblock is less than this.
    superblocks: Vec<i32>,
}

impl BidIndex {
    /// Makes room for this many nodes.
    pub(crate) fn grow(&mut self, nodes: usize) {
        if nodes == self.nodes {
            return;
        }
        self.present.resize(nodes.div_ceil(FAN_OUT), 0);
        self.lines.resize(nodes.div_ceil(IN_LINE), Line::EMPTY);
        self.nodes = nodes;
        for group in &mut self.groups {
            group.grow(nodes);
        }
    }

    /// Removes all bids, and keeps the memory for the next ones.
    pub(crate) fn clear(&mut self) {
        self.present.fill(0);
        self.groups.clear();
    }

    /// Sets a node's bid.
    pub(crate) fn set(&mut self, node: usize, bid: Option<(i32, u8)>) {
        if node >= self.nodes {
            return;
        }
        let (block, bit) = (node / FAN_OUT, 1 << (node % FAN_OUT));
        let Some((cost, forgone)) = bid else { return self.remove_if(true, node) };
        let (cost, group) = (cost.min(NONE - 1), self.group(forgone));
        self.present[block] |= bit;
        let (line, place) = (&mut self.lines[node / IN_LINE], node % IN_LINE);
        (line.costs[place], line.group_of[place]) = (cost, group);
        self.groups[usize::from(group)].lower(block, cost);
    }

    /// Removes a node's bid, if it has one, on a condition.
    pub(crate) fn remove_if(&mut self, condition: bool, node: usize) {
        if let Some(nodes) = self.present.get_mut(node / FAN_OUT) {
            *nodes &= !(u64::from(condition) << (node % FAN_OUT));
        }
    }

    /// A node's bid: its cost, and what is forgone.
    pub(crate) fn get(&self, node: usize) -> Option<(i32, u8)> {
        if !self.has_bid(node) {
            return None;
        }
        let entry = self.entry(node);
        let group = self.groups.get(usize::from(entry.group))?;
        Some((entry.cost, group.forgone))
    }

    /// The node with the least cost plus surcharge; of equal ones, the first. `surcharge` gives what is added for what
    /// is forgone.
    pub(crate) fn least(&mut self, surcharge: impl Fn(u8) -> i32) -> Option<usize> {
        let mut best: Option<(i64, usize)> = None;
        for number in 0..self.groups.len() {
            let forgone = self.groups[number].forgone;
            let added = if forgone == 0 { 0 } else { i64::from(surcharge(forgone)) };
            while let Some(bound) = self.groups[number].bound() {
                if best.is_some_and(|(least, _)| least < i64::from(bound) + added) {
                    break;
                }
                if let Some(node) = self.first(number, bound) {
                    let found = (i64::from(bound) + added, node);
                    best = Some(best.map_or(found, |best| best.min(found)));
                    break;
                }
            }
        }
        best.map(|(_, node)| node)
    }

    /// Of the nodes with a bid, the one that comes `skip` places after the first.
    pub(crate) fn nth(&self, skip: usize) -> Option<usize> {
        let mut to_skip = skip;
        for block in 0..self.present.len() {
            let here = self.count_in(block);
            if to_skip < here {
                return self.nodes_in(block).nth(to_skip);
            }
            to_skip -= here;
        }
        None
    }

    /// Number of nodes with a bid.
    pub(crate) fn count(&self) -> usize {
        (0..self.present.len()).map(|block| self.count_in(block)).sum()
    }

    /// Whether no node has a bid.
    pub(crate) fn is_empty(&self) -> bool {
        self.present.iter().all(|nodes| *nodes == 0)
    }

    fn has_bid(&self, node: usize) -> bool {
        self.present.get(node / FAN_OUT).is_some_and(|nodes| nodes >> (node % FAN_OUT) & 1 == 1)
    }

    /// The entry of a node that there is room for.
    fn entry(&self, node: usize) -> Entry {
        let (line, place) = (&self.lines[node / IN_LINE], node % IN_LINE);
        Entry { cost: line.costs[place], group: line.group_of[place] }
    }

    fn count_in(&self, block: usize) -> usize {
        self.present.get(block).map_or(0, |nodes| nodes.count_ones() as usize)
    }

    /// The nodes of a block that have a bid, in order.
    fn nodes_in(&self, block: usize) -> impl Iterator<Item = usize> + use<> {
        let nodes = self.present.get(block).copied().unwrap_or(0);
        let rest = std::iter::successors(Some(nodes), |nodes| Some(nodes & nodes.wrapping_sub(1)));
        rest.take_while(|nodes| *nodes != 0).map(move |nodes| block * FAN_OUT + nodes.trailing_zeros() as usize)
    }

    /// The first node of a group whose cost is the group's bound. If there is none, a bound of the group was too low: it
    /// is raised.
    fn first(&mut self, number: usize, bound: i32) -> Option<usize> {
        let group = &self.groups[number];
        let superblock = group.superblocks.iter().position(|least| *least == bound)?;
        let blocks = superblock * FAN_OUT..group.blocks.len().min((superblock + 1) * FAN_OUT);
        if let Some(at) = group.blocks[blocks.clone()].iter().position(|least| *least == bound) {
            let block = blocks.start + at;
            let of_group = self.nodes_in(block).map(|node| (self.entry(node), node));
            let of_group = of_group.filter(|(entry, _)| usize::from(entry.group) == number);
            let least = of_group.map(|(entry, node)| (entry.cost, node)).min();
            if let Some((_, node)) = least.filter(|(cost, _)| *cost == bound) {
                return Some(node);
            }
            self.groups[number].blocks[block] = least.map_or(NONE, |(cost, _)| cost);
        }
        let group = &mut self.groups[number];
        group.superblocks[superblock] = group.blocks[blocks].iter().copied().min().unwrap_or(NONE);
        None
    }

    fn group(&mut self, forgone: u8) -> u8 {
        let found = self.groups.iter().position(|group| group.forgone == forgone);
        let number = found.unwrap_or_else(|| {
            let mut group = BidGroup { forgone, blocks: Vec::new(), superblocks: Vec::new() };
            group.grow(self.nodes);
            self.groups.push(group);
            self.groups.len() - 1
        });
        u8::try_from(number).expect("a group for each of 256 values at most")
    }
}

impl BidGroup {
    fn grow(&mut self, nodes: usize) {
        let blocks = nodes.div_ceil(FAN_OUT);
        self.blocks.resize(blocks, NONE);
        self.superblocks.resize(blocks.div_ceil(FAN_OUT), NONE);
    }

    /// No bid of the group costs less than this; `None`: it has no bid.
    fn bound(&self) -> Option<i32> {
        self.superblocks.iter().copied().min().filter(|bound| *bound != NONE)
    }

    fn lower(&mut self, block: usize, cost: i32) {
        self.blocks[block] = self.blocks[block].min(cost);
        self.superblocks[block / FAN_OUT] = self.superblocks[block / FAN_OUT].min(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::{bool, option};

    proptest! {
        #[test]
        fn the_least_is_the_one_that_a_scan_finds(
            nodes in 1usize..9000,
            bids in vec((any::<usize>(), option::weighted(0.7, (0i32..20, 0u8..4)), bool::weighted(0.3)), 1..400),
            prices in proptest::array::uniform4(0i32..10),
        ) {
            let mut index = BidIndex::default();
            index.grow(nodes);
            let mut all = vec![None; nodes];
            for (node, bid, is_least_asked) in bids {
                index.set(node % nodes, bid);
                all[node % nodes] = bid;
                prop_assert_eq!(index.get(node % nodes), bid);
                let surcharge = |forgone: u8| if forgone == 0 { 0 } else { prices[usize::from(forgone)] };
                let scan = all.iter().enumerate()
                    .filter_map(|(node, bid)| bid.map(|(cost, forgone)| (cost + surcharge(forgone), node)))
                    .min();
                if is_least_asked {
                    prop_assert_eq!(index.least(surcharge), scan.map(|(_, node)| node));
                }
            }
            let with_bid = all.iter().enumerate().filter(|(_, bid)| bid.is_some()).map(|(node, _)| node);
            for (skip, node) in with_bid.enumerate() {
                prop_assert_eq!(index.nth(skip), Some(node));
            }
            prop_assert_eq!(index.nth(index.count()), None);
            prop_assert_eq!(index.count(), all.iter().flatten().count());
            prop_assert_eq!(index.is_empty(), all.iter().flatten().count() == 0);
            index.clear();
            prop_assert_eq!((index.count(), index.least(|_| 0), index.get(0)), (0, None, None));
        }
    }
}
