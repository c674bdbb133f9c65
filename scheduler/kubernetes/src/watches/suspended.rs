//! Workloads that a leader has suspended, this one or an earlier one. Only their metadata is asked for.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;

use super::follow::Sight;
use super::in_namespace;
use crate::mirror::{Access, Mirror};
use crate::suspension::{self, SELECTOR};
use crate::workload::{Workload, WorkloadKind};

impl Sight for WorkloadKind {
    type Object = PartialObjectMeta<DynamicObject>;

    const STARTS_WITHOUT_RIGHT: bool = true;
    const SELECTOR: Option<&'static str> = Some(SELECTOR);

    fn name(&self) -> String {
        format!("suspended {}", self.full_plural())
    }

    fn key(&self, object: &Self::Object) -> Option<String> {
        Some(in_namespace(&object.namespace()?, &object.name_any()))
    }

    fn show(&self, object: Self::Object, _: &str, mirror: &mut Mirror) {
        mirror.suspended(suspension::read(*self, &object.metadata));
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.suspended_no_more(namespace, &Workload { kind: *self, name: name.to_owned() });
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.suspended_names(*self).map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.suspendables_are(*self, access);
    }
}
