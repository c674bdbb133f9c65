//! What the jobs of this node use.

use aliquot_proto::agent::v1::{InstanceUsage, Usage};
use aliquot_proto::node::v1::{GetUsageResponse, PartUsage};

use crate::instance::{Number, generation};

/// What the slices of these instances use, for the scheduler.
pub(crate) fn of_instances(answer: &GetUsageResponse, instance_of: impl Fn(&str) -> Option<(String, Number)>) -> Usage {
    let of = answer.slices.iter().filter_map(|slice| {
        let (claim, number) = instance_of(&slice.name)?;
        let sum = |part: fn(&PartUsage) -> u64| slice.parts.iter().map(part).fold(0, u64::saturating_add);
        Some(InstanceUsage {
            claim,
            instance: Some(generation(number)),
            // Thousandths of a percent become thousandths.
            core_used_millis: sum(|part| u64::from(part.core_used_10s_millipercent)) / 100,
            memory_used_bytes: sum(|part| part.memory_used_bytes),
        })
    });
    Usage { instances: of.collect() }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::SliceUsage;

    use super::*;

    #[test]
    fn the_devices_of_an_instance_are_summed() {
        let part = |core: u32, memory: u64| PartUsage {
            core_used_10s_millipercent: core,
            memory_used_bytes: memory,
            ..PartUsage::default()
        };
        let slice = |name: &str| SliceUsage {
            name: name.into(),
            parts: vec![part(30_000, 5), part(15_500, 7)],
            ..SliceUsage::default()
        };
        let answer = GetUsageResponse { slices: vec![slice("job-1-2"), slice("train")], ..GetUsageResponse::default() };
        let usage = of_instances(&answer, |name| (name == "job-1-2").then(|| ("1.0.0.1".to_owned(), (1, 2))));
        assert_eq!(usage.instances.len(), 1);
        assert_eq!((usage.instances[0].core_used_millis, usage.instances[0].memory_used_bytes), (455, 12));
    }
}
