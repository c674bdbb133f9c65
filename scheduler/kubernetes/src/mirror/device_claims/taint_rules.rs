//! DeviceTaintRules. Those of Kubernetes 1.34 can name a class, whose expressions select the devices.

use std::collections::BTreeSet;

use super::super::{Access, Mirror};
use super::{DeviceClaims, Name};
use crate::dra::TaintRule;

impl Mirror {
    /// Notes a DeviceTaintRule, or with `None` that there is none of this name.
    pub(crate) fn device_taint_rule(&mut self, name: &str, rule: Option<TaintRule>) {
        self.device_claims.taint_rules.remove(name);
        self.device_claims.taint_rules.extend(rule.map(|rule| (name.to_owned(), rule)));
        self.device_claims.apply_rule(name);
    }

    /// Notes whether the rules can be read. If not, claims without an allocation wait.
    pub(crate) fn device_taint_rules_are(&mut self, access: Access) {
        let is_forbidden = access == Access::Forbidden;
        if std::mem::replace(&mut self.device_claims.are_rules_forbidden, is_forbidden) != is_forbidden {
            let claims: Vec<Name> = self.device_claims.users.keys().cloned().collect();
            self.device_claims.changed.extend(claims);
            let askers = self.askers();
            self.changed_pods.extend(askers);
        }
    }

    pub(crate) fn device_taint_rule_names(&self) -> BTreeSet<String> {
        self.device_claims.taint_rules.keys().cloned().collect()
    }
}

impl DeviceClaims {
    /// Taints devices as a rule says. As in Kubernetes, one whose class is not there means no device.
    fn apply_rule(&mut self, name: &str) {
        let applied = self.taint_rules.get(name).and_then(|rule| match rule.class() {
            None => Some(rule.clone()),
            Some(class) => Some(rule.with_class(self.classes.get(class)?.expressions.as_ref().ok()?)),
        });
        self.pools.taint_rule(name, applied);
    }

    pub(super) fn apply_rules_of_classes(&mut self) {
        let of_classes = self.taint_rules.iter().filter(|(_, rule)| rule.class().is_some());
        let names: Vec<String> = of_classes.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.apply_rule(name));
    }
}
