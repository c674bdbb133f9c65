//! The program, arguments and environment that a node is told to run for a member.

use std::collections::HashMap;

use aliquot_proto::agent::v1 as wire;
use aliquot_proto::agent::v1::Process;

use super::book::Entry;
use super::priority_class::PriorityClass;
use super::{ClaimName, Image, JobSpec, Mount};

/// The ports on which the first members of gangs listen: the first port, and their number.
const PORT_FIRST: u64 = 29_400;
const PORTS: u64 = 600;

impl Entry {
    /// The process of a member; `first_address` is the address of the first member of its gang.
    pub(crate) fn process(&self, claim: ClaimName, first_address: Option<&str>) -> Option<Process> {
        let spec = &self.job.spec;
        let task = self.tasks.get(&claim.index)?;
        let mut environment: HashMap<String, String> =
            spec.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let own = own_variables(spec, claim, task.starts.max(1), first_address);
        environment.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Some(Process {
            command: spec.command.clone(),
            environment,
            work_dir: spec.work_dir.clone(),
            uid: self.job.uid,
            user: self.job.user.clone(),
            local_user: self.job.local_user.clone(),
            time_limit_ms: spec.time_limit_ms,
            grace_ms: spec.grace_ms,
            description: format!("job {} of {}: {}", claim.job, self.job.user, spec.name),
            log: claim.log(),
            image: spec.image.as_ref().map(image),
            // The secrets are decrypted when the command is sent to its node.
            secrets: Vec::new(),
            core_limit_percent: spec.gpu_core_limit_percent,
            priority_class: PriorityClass::for_nodes(spec.priority_class).into(),
        })
    }
}

fn image(image: &Image) -> wire::Image {
    let mount = |mount: &Mount| wire::Mount {
        source: mount.source.clone(),
        target: mount.target.clone(),
        read_only: mount.read_only,
    };
    wire::Image {
        reference: image.reference.clone(),
        mounts: image.mounts.iter().map(mount).collect(),
        shm_bytes: image.shm_bytes,
    }
}

/// The variables that tell a member about itself and its gang. Those for gangs have the names that PyTorch's launcher
/// uses.
fn own_variables(
    spec: &JobSpec,
    claim: ClaimName,
    starts: u32,
    first_address: Option<&str>,
) -> Vec<(&'static str, String)> {
    let mut variables = vec![
        ("ALIQUOT_JOB_ID", claim.job.to_string()),
        ("ALIQUOT_TASK_INDEX", claim.index.to_string()),
        ("ALIQUOT_ATTEMPT", starts.to_string()),
    ];
    if spec.has_array {
        variables.push(("ALIQUOT_ARRAY_INDEX", claim.index.to_string()));
    }
    if spec.gang > 1 {
        // The ports are spread, so that gangs that run at the same time on one node rarely get the same port.
        let mixed =
            claim.job.wrapping_mul(7).wrapping_add(u64::from(claim.index)).wrapping_add(u64::from(claim.attempt));
        variables.extend([
            ("RANK", claim.rank.to_string()),
            ("WORLD_SIZE", spec.gang.to_string()),
            ("LOCAL_RANK", "0".to_owned()),
            ("MASTER_ADDR", first_address.unwrap_or_default().to_owned()),
            ("MASTER_PORT", (PORT_FIRST + mixed % PORTS).to_string()),
        ]);
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_gang_learn_their_rank_and_meet_at_the_first() {
        let spec = JobSpec { gang: 4, ..JobSpec::default() };
        let of_rank = |rank| {
            let claim = ClaimName { job: 17, index: 0, rank, attempt: 2 };
            own_variables(&spec, claim, 1, Some("10.0.0.5")).into_iter().collect::<HashMap<_, _>>()
        };
        let (first, last) = (of_rank(0), of_rank(3));
        assert_eq!((first["RANK"].as_str(), last["RANK"].as_str(), last["WORLD_SIZE"].as_str()), ("0", "3", "4"));
        assert_eq!((last["MASTER_ADDR"].as_str(), &first["MASTER_PORT"]), ("10.0.0.5", &last["MASTER_PORT"]));
        let alone = own_variables(&JobSpec::default(), ClaimName { job: 1, index: 0, rank: 0, attempt: 1 }, 1, None);
        assert!(alone.iter().all(|(name, _)| name.starts_with("ALIQUOT_")), "{alone:?}");
    }
}
