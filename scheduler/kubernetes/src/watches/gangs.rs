//! Objects that say which pods start together.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::DynamicObject;

use super::follow::Sight;
use super::in_namespace;
use crate::gang::{Address, GangFacts, GangKind};
use crate::mirror::{Access, GroupSaid, Mirror};

impl Sight for GangKind {
    type Object = DynamicObject;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        let Address { group, plural, .. } = self.api();
        format!("{plural}.{group}")
    }

    fn key(&self, object: &DynamicObject) -> Option<String> {
        Some(in_namespace(&object.namespace()?, &object.name_any()))
    }

    fn show(&self, object: DynamicObject, _: &str, mirror: &mut Mirror) {
        if let Some(namespace) = object.namespace() {
            let facts = GangFacts::of(*self, &object.metadata, &object.data["spec"]);
            let said = GroupSaid {
                uid: object.uid().unwrap_or_default(),
                generation: object.metadata.generation.unwrap_or(0),
                conditions: serde_json::from_value(object.data["status"]["conditions"].clone()).unwrap_or_default(),
            };
            mirror.gang(*self, &namespace, &object.name_any(), facts);
            mirror.gang_says(*self, &namespace, &object.name_any(), Some(said));
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.gang_gone(*self, namespace, name);
            mirror.gang_says(*self, namespace, name, None);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.gang_names(*self).map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.gangs_are(*self, access);
    }
}
