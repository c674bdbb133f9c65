//! The bids of one class on all nodes, kept so that the least is found without a look at each node.

use crate::decisions::placement::policy::Bid;

/// Nodes in a block, and blocks in a superblock: the number of bits of a word.
const FAN_OUT: usize = 64;
/// The cost in place of a missing bid.
const NONE: i32 = Bid::NONE;

/// Costs by node, with the least of each block of nodes and of each superblock of blocks. Nodes with the same *forgone*
/// (see [`Bid::forgone`]) form a group with its own tables: the surcharge for what is forgone differs from decision to
/// decision, but is the same for all nodes of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct BidIndex {
    /// Nodes with a bid, one bit each and one word for each block. The bids of many classes do not fit into a
    /// processor's caches, but these words do, and most nodes have no bid.
    present: Vec<u64>,
    /// The costs of nodes with a bid. The values of other nodes mean nothing.
    costs: Vec<i32>,
    /// The group number of each node with a bid.
    group_of: Vec<u8>,
    groups: Vec<BidGroup>,
}

#[derive(Clone, Debug)]
struct BidGroup {
    forgone: u8,
    blocks: Vec<i32>,
    superblocks: Vec<i32>,
}

impl BidIndex {
    /// Makes room for this many nodes.
    pub(crate) fn grow(&mut self, nodes: usize) {
        if nodes == self.costs.len() {
            return;
        }
        self.present.resize(nodes.div_ceil(FAN_OUT), 0);
        self.costs.resize(nodes, NONE);
        self.group_of.resize(nodes, 0);
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
        let had_bid = self.has_bid(node);
        if node >= self.costs.len() || (bid.is_none() && !had_bid) {
            return;
        }
        let old = had_bid.then(|| (self.costs[node], self.group_of[node]));
        let new = bid.map(|(cost, forgone)| (cost.min(NONE - 1), self.group(forgone)));
        let (block, bit) = (node / FAN_OUT, 1 << (node % FAN_OUT));
        match new {
            Some((cost, group)) => {
                self.present[block] |= bit;
                (self.costs[node], self.group_of[node]) = (cost, group);
            }
            None => self.present[block] &= !bit,
        }
        if let Some((old_cost, old_group)) = old
            && new.is_none_or(|(cost, group)| group != old_group || cost > old_cost)
        {
            self.refresh(old_group, block, old_cost);
        }
        if let Some((cost, group)) = new {
            self.groups[usize::from(group)].lower(block, cost);
        }
    }

    /// A node's bid: its cost, and what is forgone.
    pub(crate) fn get(&self, node: usize) -> Option<(i32, u8)> {
        if !self.has_bid(node) {
            return None;
        }
        let group = self.groups.get(usize::from(*self.group_of.get(node)?))?;
        Some((*self.costs.get(node)?, group.forgone))
    }

    /// The node with the least cost plus surcharge; of equal ones, the first. `surcharge` gives what is added for what
    /// is forgone.
    pub(crate) fn least(&self, surcharge: impl Fn(u8) -> i32) -> Option<usize> {
        let mut best: Option<(i64, usize)> = None;
        for (number, group) in (0u8..).zip(&self.groups) {
            let Some(cost) = group.superblocks.iter().copied().min().filter(|cost| *cost != NONE) else { continue };
            let added = if group.forgone == 0 { 0 } else { surcharge(group.forgone) };
            let total = i64::from(cost) + i64::from(added);
            if best.is_some_and(|(least, _)| least < total) {
                continue;
            }
            let Some(node) = self.first(number, group, cost) else { continue };
            if best.is_none_or(|best| (total, node) < best) {
                best = Some((total, node));
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

    fn count_in(&self, block: usize) -> usize {
        self.present.get(block).map_or(0, |nodes| nodes.count_ones() as usize)
    }

    /// The nodes of a block that have a bid, in order.
    fn nodes_in(&self, block: usize) -> impl Iterator<Item = usize> + use<> {
        let nodes = self.present.get(block).copied().unwrap_or(0);
        let rest = std::iter::successors(Some(nodes), |nodes| Some(nodes & nodes.wrapping_sub(1)));
        rest.take_while(|nodes| *nodes != 0).map(move |nodes| block * FAN_OUT + nodes.trailing_zeros() as usize)
    }

    /// The first node of a group with this cost, which is the least of the group.
    fn first(&self, number: u8, group: &BidGroup, cost: i32) -> Option<usize> {
        let superblock = group.superblocks.iter().position(|least| *least == cost)?;
        let blocks = group.blocks.get(superblock * FAN_OUT..)?;
        let block = superblock * FAN_OUT + blocks.iter().position(|least| *least == cost)?;
        self.nodes_in(block).find(|node| self.costs[*node] == cost && self.group_of[*node] == number)
    }

    fn group(&mut self, forgone: u8) -> u8 {
        let found = self.groups.iter().position(|group| group.forgone == forgone);
        let number = found.unwrap_or_else(|| {
            let mut group = BidGroup { forgone, blocks: Vec::new(), superblocks: Vec::new() };
            group.grow(self.costs.len());
            self.groups.push(group);
            self.groups.len() - 1
        });
        u8::try_from(number).expect("a group for each of 256 values at most")
    }

    /// Finds the least of a block and of its superblock again, after a node with the cost `old` has left the group or
    /// has got a higher cost.
    fn refresh(&mut self, number: u8, block: usize, old: i32) {
        if self.groups[usize::from(number)].blocks[block] != old {
            return;
        }
        let of_group = self.nodes_in(block).filter(|node| self.group_of[*node] == number);
        let least = of_group.map(|node| self.costs[node]).min().unwrap_or(NONE);
        let group = &mut self.groups[usize::from(number)];
        group.blocks[block] = least;
        let superblock = block / FAN_OUT;
        if least != old && group.superblocks[superblock] == old {
            let blocks = superblock * FAN_OUT..group.blocks.len().min((superblock + 1) * FAN_OUT);
            group.superblocks[superblock] = group.blocks[blocks].iter().copied().min().unwrap_or(NONE);
        }
    }
}

impl BidGroup {
    fn grow(&mut self, nodes: usize) {
        let blocks = nodes.div_ceil(FAN_OUT);
        self.blocks.resize(blocks, NONE);
        self.superblocks.resize(blocks.div_ceil(FAN_OUT), NONE);
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

    proptest! {
        #[test]
        fn the_least_is_the_one_that_a_scan_finds(
            nodes in 1usize..9000,
            bids in vec((any::<usize>(), proptest::option::weighted(0.7, (0i32..20, 0u8..4))), 1..400),
            prices in proptest::array::uniform4(0i32..10),
        ) {
            let mut index = BidIndex::default();
            index.grow(nodes);
            let mut all = vec![None; nodes];
            for (node, bid) in bids {
                index.set(node % nodes, bid);
                all[node % nodes] = bid;
                prop_assert_eq!(index.get(node % nodes), bid);
                let surcharge = |forgone: u8| if forgone == 0 { 0 } else { prices[usize::from(forgone)] };
                let scan = all.iter().enumerate()
                    .filter_map(|(node, bid)| bid.map(|(cost, forgone)| (cost + surcharge(forgone), node)))
                    .min();
                prop_assert_eq!(index.least(surcharge), scan.map(|(_, node)| node));
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
