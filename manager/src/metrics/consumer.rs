//! Labels with the container of a pod that has a slice, named as in kubelet's own metrics and in NVIDIA's exporter.

use std::collections::BTreeSet;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

/// `namespace`, `pod` and `container`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Consumer {
    namespace: String,
    pod: String,
    container: String,
}

impl From<&aliquot_node::Consumer> for Consumer {
    fn from(consumer: &aliquot_node::Consumer) -> Consumer {
        let aliquot_node::Consumer { namespace, pod, container } = consumer.clone();
        Consumer { namespace, pod, container }
    }
}

/// The labels of a slice's metrics: those of its container if it has exactly one, else none. The joint use of several
/// containers is reported once and not for each of them, because sums would count it several times.
/// `aliquot_slice_consumer_info` names all containers.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct OnlyConsumer(Option<Consumer>);

impl OnlyConsumer {
    pub(super) fn of(consumers: &BTreeSet<aliquot_node::Consumer>) -> OnlyConsumer {
        OnlyConsumer(consumers.first().filter(|_| consumers.len() == 1).map(Into::into))
    }
}

impl EncodeLabelSet for OnlyConsumer {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
        self.0.as_ref().map_or(Ok(()), |consumer| consumer.encode(encoder))
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
    struct Labels {
        slice: String,
        #[prometheus(flatten)]
        consumer: OnlyConsumer,
    }

    fn line(pods: &[&str]) -> String {
        let consumer = |pod: &&str| aliquot_node::Consumer {
            namespace: "team-a".into(),
            pod: (*pod).into(),
            container: "main".into(),
        };
        let consumers = pods.iter().map(consumer).collect();
        let family = Family::<Labels, Gauge>::default();
        family.get_or_create(&Labels { slice: "s".into(), consumer: OnlyConsumer::of(&consumers) }).set(1);
        let mut registry = Registry::default();
        registry.register("used", "Used", family);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text.lines().find(|line| line.starts_with("used")).unwrap().to_owned()
    }

    #[test]
    fn figures_are_labelled_with_the_only_container_of_the_slice() {
        assert_eq!(line(&[]), "used{slice=\"s\"} 1");
        assert_eq!(line(&["train-0"]), "used{slice=\"s\",namespace=\"team-a\",pod=\"train-0\",container=\"main\"} 1");
        assert_eq!(line(&["train-0", "train-1"]), "used{slice=\"s\"} 1");
    }
}
