//! Changes a snapshot, as the options of `simulate` say.

use anyhow::{Context, Result, bail, ensure};

use crate::policy::PolicyName;
use crate::snapshot::amount::ResourceKey;
use crate::snapshot::format::{AllowanceEntry, File, GpuEntry, NodeEntry, QueueEntry};

impl File {
    /// Adds the nodes, queues, namespaces, budgets, pod groups and claims of another snapshot, after the existing ones.
    ///
    /// # Errors
    /// If the other snapshot sets something that can be set only once.
    pub fn add(&mut self, other: Self) -> Result<()> {
        let Self {
            version,
            now_ms,
            scheduler,
            topology,
            nodes,
            queues,
            namespaces,
            disruption_budgets,
            mut pod_groups,
            claims,
            history,
        } = other;
        ensure!(version == self.version, "an added file must have \"version\": {}", self.version);
        let rest = Self { version, now_ms, scheduler, topology, history, ..Self::default() };
        ensure!(
            rest == Self { version, ..Self::default() },
            "an added file can have nodes, queues, namespaces, disruption_budgets, pod_groups and claims, and nothing else"
        );
        let claims_before: usize = self.claims.iter().map(|claim| claim.count.map_or(1, |count| count as usize)).sum();
        for group in &mut pod_groups {
            group.after_claims = group.after_claims.saturating_add(claims_before);
        }
        self.nodes.extend(nodes);
        self.queues.extend(queues);
        self.namespaces.extend(namespaces);
        self.disruption_budgets.extend(disruption_budgets);
        self.pod_groups.extend(pod_groups);
        self.claims.extend(claims);
        Ok(())
    }

    /// Adds `count` nodes that are like the node of this name, with all their resources free.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn add_nodes_like(&mut self, name: &str, count: u32) -> Result<()> {
        let like = self.nodes.iter().find(|node| node.stands_for(name));
        let like = like.with_context(|| format!("there is no node {name:?} to add some like it"))?;
        let gpus = like.gpus.iter().map(|gpu| GpuEntry { uuid: String::new(), ..gpu.clone() }).collect();
        let node = NodeEntry {
            name: format!("{name}-added"),
            count: Some(count),
            gpus,
            cordoned: false,
            held: false,
            foreign: Vec::new(),
            ..like.clone()
        };
        self.nodes.push(node);
        Ok(())
    }

    /// Sets a value of a queue: `QUEUE.quota.RESOURCE=AMOUNT`, or with `limit` or `weight`.
    ///
    /// # Errors
    /// If the text has another form, or the queue does not exist.
    pub fn set_allowance(&mut self, text: &str) -> Result<()> {
        let form = "write QUEUE.quota.RESOURCE=AMOUNT, or with limit or weight";
        let (place, amount) = text.rsplit_once('=').context(form)?;
        let parts = ["quota", "limit", "weight"].into_iter().find_map(|field| {
            let (queue, resource) = place.split_once(&format!(".{field}."))?;
            Some((queue, field, resource))
        });
        let (name, field, resource) = parts.context(form)?;
        let key = ResourceKey::parse(resource)?;
        let number = match amount {
            "none" => None,
            amount => {
                Some(amount.parse::<u64>().with_context(|| format!("{amount:?} is not a whole number, or none"))?)
            }
        };
        if name == aliquot_scheduler_core::DEFAULT_QUEUE && self.queues.iter().all(|queue| queue.name != name) {
            self.queues.insert(0, QueueEntry { name: name.to_owned(), ..QueueEntry::default() });
        }
        let queue = self.queues.iter_mut().find(|queue| queue.name == name);
        let allowance = queue.with_context(|| format!("there is no queue {name:?}"))?.in_smallest_unit(&key)?;
        let amount = number.map(|number| key.amount(number)).transpose()?;
        match (field, number) {
            ("quota", _) => allowance.quota = amount,
            ("limit", _) => allowance.limit = amount,
            (_, Some(weight)) => allowance.weight = weight,
            (_, None) => bail!("a weight is a number; with 0 the queue gets nothing beyond its quota"),
        }
        Ok(())
    }

    /// Replaces the policy, and keeps its seed and mix.
    pub fn set_policy(&mut self, policy: PolicyName) {
        self.scheduler.policy = policy;
    }
}

impl NodeEntry {
    /// Whether the entry stands for the node of this name, alone or as one of several.
    fn stands_for(&self, name: &str) -> bool {
        let Some(count) = self.count else { return self.name == name };
        let number = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('-'));
        number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number < count)
    }
}

impl QueueEntry {
    /// The entry for a resource, which is converted to the resource's smallest unit.
    fn in_smallest_unit(&mut self, key: &ResourceKey) -> Result<&mut AllowanceEntry> {
        let said = self.resources.keys().find(|other| other.resource == key.resource).cloned();
        let mut entry = AllowanceEntry::default();
        if let Some((said, old)) = said.and_then(|said| self.resources.remove_entry(&said)) {
            let scaled = |amount: Option<u64>| amount.map(|amount| said.amount(amount)).transpose();
            entry = AllowanceEntry { quota: scaled(old.quota)?, limit: scaled(old.limit)?, ..old };
        }
        Ok(self.resources.entry(ResourceKey::smallest(key.resource.clone())).or_insert(entry))
    }
}
