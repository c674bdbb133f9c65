//! Exports histograms that were counted elsewhere to Prometheus.

use aliquot_node::WaitHistogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// All histograms of one name, one for each set of labels.
#[derive(Debug)]
pub(super) struct Histograms<L> {
    /// The name without the unit.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) of: Vec<(L, WaitHistogram)>,
}

impl<L: EncodeLabelSet + std::fmt::Debug + Send + Sync + 'static> Collector for Histograms<L> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut metric =
            encoder.encode_descriptor(self.name, self.help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, histogram) in &self.of {
            // The last count, of values above all bounds, goes into the bucket that the format calls +Inf.
            let bounds = histogram.bounds_ns.iter().map(|&bound_ns| bound_ns as f64 / 1e9).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts.iter().copied()).collect();
            let (sum, count) = (histogram.total_ns as f64 / 1e9, histogram.counts.iter().sum());
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}
