//! One class's bids on all nodes, kept so that the least is found without looking at each.

use crate::decisions::placement::policy::Bid;

/// Nodes in a block, and blocks in a superblock.
const FAN_OUT: usize = 64;
/// No bid.
const NONE: i32 = Bid::NONE;

/// Costs by node, with the least of each block of nodes and of each superblock of blocks, separately for each *forgone*
/// (see [`Bid::forgone`]): what is added for that differs from decision to decision, but is the same for all nodes of a
/// group.
#[derive(Clone, Debug, Default)]
pub(crate) struct BidIndex {
    costs: Vec<i32>,
    /// The number of each node's group.
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
    /// Makes room for so many nodes.
    pub(crate) fn grow(&mut self, nodes: usize) {
        self.costs.resize(nodes, NONE);
        self.group_of.resize(nodes, 0);
        for group in &mut self.groups {
            group.grow(nodes);
        }
    }

    /// Sets a node's bid.
    pub(crate) fn set(&mut self, node: usize, bid: Option<(i32, u8)>) {
        let (Some(&old_cost), Some(&old_group)) = (self.costs.get(node), self.group_of.get(node)) else { return };
        let (cost, group) = match bid {
            Some((cost, forgone)) => (cost.min(NONE - 1), self.group(forgone)),
            None => (NONE, old_group),
        };
        self.costs[node] = cost;
        self.group_of[node] = group;
        if old_cost != NONE && (old_group != group || old_cost < cost) {
            self.refresh(old_group, node, old_cost);
        }
        if cost != NONE {
            self.groups[usize::from(group)].lower(node, cost);
        }
    }

    /// A node's bid: its cost, and what is forgone.
    pub(crate) fn get(&self, node: usize) -> Option<(i32, u8)> {
        let cost = self.costs.get(node).copied().filter(|cost| *cost != NONE)?;
        let group = self.groups.get(usize::from(*self.group_of.get(node)?))?;
        Some((cost, group.forgone))
    }

    /// The node with the least cost and surcharge, the first one among equals; `surcharge` says what is added for what
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

    /// The node that comes `skip` places after the first one of those with a bid.
    pub(crate) fn nth(&self, skip: usize) -> Option<usize> {
        self.costs.iter().enumerate().filter(|(_, cost)| **cost != NONE).map(|(node, _)| node).nth(skip)
    }

    /// Number of nodes with a bid.
    pub(crate) fn count(&self) -> usize {
        self.costs.iter().filter(|cost| **cost != NONE).count()
    }

    /// Whether no node has a bid.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.iter().all(|group| group.superblocks.iter().all(|cost| *cost == NONE))
    }

    /// The first node of a group with this cost, which is the group's least.
    fn first(&self, number: u8, group: &BidGroup, cost: i32) -> Option<usize> {
        let superblock = group.superblocks.iter().position(|least| *least == cost)?;
        let blocks = group.blocks.get(superblock * FAN_OUT..)?;
        let block = superblock * FAN_OUT + blocks.iter().position(|least| *least == cost)?;
        let start = block * FAN_OUT;
        let here = self.costs.get(start..)?.iter().zip(self.group_of.get(start..)?);
        Some(start + here.take(FAN_OUT).position(|(c, g)| *c == cost && *g == number)?)
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

    /// Finds the least of a block and its superblock again after a node that cost `old` has left the group or become
    /// dearer.
    fn refresh(&mut self, number: u8, node: usize, old: i32) {
        let block = node / FAN_OUT;
        let group = &mut self.groups[usize::from(number)];
        if group.blocks[block] != old {
            return;
        }
        let nodes = block * FAN_OUT..self.costs.len().min((block + 1) * FAN_OUT);
        let here = self.costs[nodes.clone()].iter().zip(&self.group_of[nodes]);
        group.blocks[block] =
            here.map(|(cost, group)| if *group == number { *cost } else { NONE }).min().unwrap_or(NONE);
        let superblock = block / FAN_OUT;
        if group.superblocks[superblock] == old {
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

    fn lower(&mut self, node: usize, cost: i32) {
        let block = node / FAN_OUT;
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
            prop_assert_eq!(index.count(), all.iter().flatten().count());
            prop_assert_eq!(index.is_empty(), all.iter().flatten().count() == 0);
        }
    }
}
