//! Owners of pods. Only their metadata is asked for.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;

use super::follow::Sight;
use super::in_namespace;
use crate::gang::Address;
use crate::mirror::{Access, Mirror};
use crate::owner::{OwnerFacts, OwnerKind};

impl Sight for OwnerKind {
    type Object = PartialObjectMeta<DynamicObject>;

    /// Only words on owners need it.
    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        let Address { group, plural, .. } = self.api();
        format!("{plural}.{group}")
    }

    fn key(&self, object: &Self::Object) -> Option<String> {
        Some(in_namespace(&object.namespace()?, &object.name_any()))
    }

    fn show(&self, object: Self::Object, _: &str, mirror: &mut Mirror) {
        if let Some(namespace) = object.namespace() {
            mirror.owner(*self, &namespace, &object.name_any(), OwnerFacts::of(&object.metadata));
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.owner_gone(*self, namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.owner_names(*self).map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.owners_are(*self, access);
    }
}
