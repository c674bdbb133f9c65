//! Exhaustive searches: what could be placed at most, if everything were known beforehand.

/// How many tasks fit that want a part of `wanted` different devices each, if the devices have room for so many parts.
pub(crate) fn most_rounds(parts: &[u32], wanted: u16) -> u32 {
    let sets = sets(parts.len(), usize::from(wanted));
    let after = sets.iter().filter_map(|set| {
        let mut parts = parts.to_vec();
        for device in set {
            parts[*device] = parts[*device].checked_sub(1)?;
        }
        // Devices are interchangeable, so only what is left matters.
        parts.sort_unstable();
        Some(parts)
    });
    let different: std::collections::BTreeSet<Vec<u32>> = after.collect();
    different.into_iter().map(|parts| 1 + most_rounds(&parts, wanted)).max().unwrap_or(0)
}

/// All sets of `count` of `number` devices.
pub(crate) fn sets(number: usize, count: usize) -> Vec<Vec<usize>> {
    let all = (0..1u32 << number).filter(|bits| bits.count_ones() as usize == count);
    all.map(|bits| (0..number).filter(|device| bits >> device & 1 == 1).collect()).collect()
}
