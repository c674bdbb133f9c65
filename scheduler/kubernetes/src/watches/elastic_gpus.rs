//! Claims for parts of devices, their classes, and the parts that are bound to them.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::follow::Sight;
use super::in_namespace;
use crate::elastic::{ElasticGpu, ElasticGpuClaim, ElasticGpuClass};
use crate::mirror::{Access, Mirror};

pub(super) struct ElasticGpuClasses;

impl Sight for ElasticGpuClasses {
    type Object = ElasticGpuClass;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "elasticgpuclasses".into()
    }

    fn key(&self, class: &ElasticGpuClass) -> Option<String> {
        class.metadata.name.clone()
    }

    fn show(&self, class: ElasticGpuClass, _: &str, mirror: &mut Mirror) {
        mirror.elastic_gpu_class(&class.name_any(), class.spec);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.elastic_gpu_class_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.elastic_gpu_class_names()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        if access == Access::Forbidden {
            mirror.elastic_gpu_claims_are(access);
        }
    }
}

pub(super) struct ElasticGpuClaims;

impl Sight for ElasticGpuClaims {
    type Object = ElasticGpuClaim;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "elasticgpuclaims".into()
    }

    fn key(&self, claim: &ElasticGpuClaim) -> Option<String> {
        Some(in_namespace(&claim.namespace()?, &claim.name_any()))
    }

    fn show(&self, claim: ElasticGpuClaim, _: &str, mirror: &mut Mirror) {
        mirror.elastic_gpu_claim(claim);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.elastic_gpu_claim_gone(namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.elastic_gpu_claim_names().map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.elastic_gpu_claims_are(access);
    }
}

pub(super) struct ElasticGpus;

impl Sight for ElasticGpus {
    type Object = ElasticGpu;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "elasticgpus".into()
    }

    fn key(&self, gpu: &ElasticGpu) -> Option<String> {
        gpu.metadata.name.clone()
    }

    fn show(&self, gpu: ElasticGpu, _: &str, mirror: &mut Mirror) {
        mirror.elastic_gpu(gpu);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.elastic_gpu_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.elastic_gpu_names()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        if access == Access::Forbidden {
            mirror.elastic_gpu_claims_are(access);
        }
    }
}
