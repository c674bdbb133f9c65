//! The specification of a job: one set of keys for the command line, for YAML files and for their JSON Schema.

mod array;
mod schema;
mod values;
mod yaml;

use std::collections::HashMap;
use std::env;

use aliquot_proto::scheduler::v1::{JobSpec, PriorityClass as ClassOfJob, Restart as RestartRule, Toleration};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use array::{Indices, short as indices_short};
pub(crate) use schema::json_schema;
pub(crate) use values::{Count, JobId, Priority, Text};
pub(crate) use yaml::read;

use crate::cluster::completion;
use crate::error::{Failure, Result, exit};
use crate::priority::Priority as PriorityClass;
use crate::quantity::{Bytes, CorePercent, Span, Thousandths};
use values::{Key, Label, MountWord, Pair, Restart, SecretWord, Times, Variable};

/// A job, as `aliquot submit` takes it. Every key is an option of the same name; `command` is the text after `--`.
#[derive(Args, Deserialize, JsonSchema, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[schemars(title = "Aliquot job")]
pub(crate) struct JobWords {
    /// Name for people; need not be unique [default: the program's name]
    #[arg(long, value_name = "NAME")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) name: Option<Text>,
    /// Queue [default: default]
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(completion::queues))]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) queue: Option<Text>,

    /// Share of each device's time, in percent: 30 or 30% [default: 1 with --gpu-memory; 100 with only --gpus]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) gpu_core: Option<CorePercent>,
    /// Maximum share of each device's time, in percent, also while the device is idle [default: the same as --gpu-core]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) gpu_core_limit: Option<CorePercent>,
    /// Memory on each device: 8GiB, 512MiB, 4GB. It brings no share of the time: without --gpu-core that is only 1 %
    /// [default: the same percentage as --gpu-core]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) gpu_memory: Option<Bytes>,
    /// Number of devices; the share and the memory are of each [default: 1, if a share or memory is given]
    #[arg(long, value_name = "N", help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) gpus: Option<Count>,
    /// Priority class on the device. Among jobs within their shares, a latency-critical one gets the device first and a
    /// batch one last; a batch job is also the last to get idle time [default: the node's setting
    /// default_priority_class, or standard]
    #[arg(long, value_name = "CLASS", help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) priority_class: Option<PriorityClass>,
    /// CPUs: 2 or 0.5
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) cpu: Option<Thousandths>,
    /// Host memory: 16GiB, 512MiB, 4GB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "What each member gets")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) memory: Option<Bytes>,

    /// Number of members, which start together or not at all. Each member has the variables RANK, WORLD_SIZE,
    /// MASTER_ADDR and MASTER_PORT, as with torchrun [default: 1]
    #[arg(long, value_name = "N", help_heading = "How many")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) gang: Option<Count>,
    /// Run one task for each index: 0-99 or 1,3,5-7. A task finds its index in the variable ALIQUOT_ARRAY_INDEX
    #[arg(long, value_name = "INDICES", allow_hyphen_values = true, help_heading = "How many")]
    #[serde(deserialize_with = "yaml::joined")]
    pub(crate) array: Option<Indices>,

    /// Priority within the queue; a greater number goes first [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = "When")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) priority: Option<Priority>,
    /// Never evict the job to make room for others
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        help_heading = "When"
    )]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) non_preemptible: Option<bool>,
    /// Job that must succeed before this job starts; may be given several times
    #[arg(long, value_name = "JOB", add = ArgValueCompleter::new(completion::jobs), help_heading = "When")]
    #[serde(deserialize_with = "yaml::many")]
    #[schemars(schema_with = "schema::many::<JobId>")]
    pub(crate) after: Vec<JobId>,
    /// Stop each attempt after this time: 30m, 2h
    #[arg(long, value_name = "TIME", help_heading = "When")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) time_limit: Option<Span>,
    /// Time between SIGTERM and SIGKILL when a task is stopped [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "When")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) grace: Option<Span>,

    /// Number of times that a failed task is started again [default: 0]
    #[arg(long, value_name = "N", help_heading = "When something fails")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) retries: Option<Times>,
    /// Delay before the first retry; it doubles with each retry [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "When something fails")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) retry_delay: Option<Span>,
    /// Whether a task starts again after it was evicted or its node was lost. With never the task counts as failed, so
    /// no task runs twice [default: always]
    #[arg(long, value_name = "always|never", help_heading = "When something fails")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) restart: Option<Restart>,

    /// Node on which the job may run; may be given several times [default: any node]
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::nodes), help_heading = "Where")]
    #[serde(deserialize_with = "yaml::many")]
    #[schemars(schema_with = "schema::many::<Text>")]
    pub(crate) node: Vec<Text>,
    /// Label that the node must have; may be given several times
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Where")]
    #[serde(deserialize_with = "yaml::pairs")]
    #[schemars(schema_with = "schema::pairs")]
    pub(crate) label: Vec<Label>,
    /// Accepted device model; may be given several times [default: any model]
    #[arg(long, value_name = "MODEL", help_heading = "Where")]
    #[serde(deserialize_with = "yaml::many")]
    #[schemars(schema_with = "schema::many::<Text>")]
    pub(crate) gpu_model: Vec<Text>,
    /// Taint of nodes that the job tolerates; may be given several times
    #[arg(long, value_name = "KEY[=VALUE]", help_heading = "Where")]
    #[serde(deserialize_with = "yaml::pairs")]
    #[schemars(schema_with = "schema::pairs_or_null")]
    pub(crate) tolerate: Vec<Key>,

    /// Environment variable of the job; may be given several times. Without a value (in a file: null) it gets the value
    /// that it has here
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "What runs")]
    #[serde(deserialize_with = "yaml::pairs")]
    #[schemars(schema_with = "schema::pairs_or_null")]
    pub(crate) env: Vec<Variable>,
    /// Secret that the job gets as a file of this name in the directory $ALIQUOT_SECRETS, and as the value of VARIABLE
    /// if given; may be given several times. See aliquot secrets
    #[arg(long, value_name = "NAME[:VARIABLE]", add = ArgValueCompleter::new(completion::secrets), help_heading = "What runs")]
    #[serde(deserialize_with = "yaml::many")]
    #[schemars(schema_with = "schema::many::<SecretWord>")]
    pub(crate) secret: Vec<SecretWord>,
    /// Run in a container of this image, in the notation of podman. Without a command, run the image's command
    #[arg(long, value_name = "IMAGE", help_heading = "What runs")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) image: Option<Text>,
    /// Directory of the node that is mounted into the container, or ~ for the home directory there; may be given
    /// several times. The node's administrator decides which directories are allowed
    #[arg(long, value_name = "DIR[:WHERE][:ro]", help_heading = "What runs")]
    #[serde(deserialize_with = "yaml::many")]
    #[schemars(schema_with = "schema::many::<MountWord>")]
    pub(crate) mount: Vec<MountWord>,
    /// Size of the container's /dev/shm [default: podman's, 64 MB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "What runs")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) shm_size: Option<Bytes>,
    /// Working directory. Below the current directory, or a path from the root, as it must be with an image and from a
    /// machine outside the cluster [default: the current directory; with an image, the image's]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, help_heading = "What runs")]
    #[serde(deserialize_with = "yaml::one")]
    pub(crate) workdir: Option<Text>,
    /// The command and its arguments
    // Only after --: an argument that is not an option must not become the command.
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

impl JobWords {
    /// These words, and those of `file` that are not among them. Of pairs, each key counts by itself.
    pub(crate) fn over(self, file: JobWords) -> JobWords {
        fn list<T>(own: Vec<T>, of_file: Vec<T>) -> Vec<T> {
            if own.is_empty() { of_file } else { own }
        }
        fn pairs<T: Pair>(own: Vec<T>, of_file: Vec<T>) -> Vec<T> {
            let others: Vec<T> =
                of_file.into_iter().filter(|pair| own.iter().all(|own| own.key() != pair.key())).collect();
            others.into_iter().chain(own).collect()
        }
        JobWords {
            name: self.name.or(file.name),
            queue: self.queue.or(file.queue),
            gpu_core: self.gpu_core.or(file.gpu_core),
            gpu_core_limit: self.gpu_core_limit.or(file.gpu_core_limit),
            gpu_memory: self.gpu_memory.or(file.gpu_memory),
            gpus: self.gpus.or(file.gpus),
            priority_class: self.priority_class.or(file.priority_class),
            cpu: self.cpu.or(file.cpu),
            memory: self.memory.or(file.memory),
            gang: self.gang.or(file.gang),
            array: self.array.or(file.array),
            priority: self.priority.or(file.priority),
            non_preemptible: self.non_preemptible.or(file.non_preemptible),
            after: list(self.after, file.after),
            time_limit: self.time_limit.or(file.time_limit),
            grace: self.grace.or(file.grace),
            retries: self.retries.or(file.retries),
            retry_delay: self.retry_delay.or(file.retry_delay),
            restart: self.restart.or(file.restart),
            node: list(self.node, file.node),
            label: pairs(self.label, file.label),
            gpu_model: list(self.gpu_model, file.gpu_model),
            tolerate: pairs(self.tolerate, file.tolerate),
            env: pairs(self.env, file.env),
            secret: list(self.secret, file.secret),
            image: self.image.or(file.image),
            mount: list(self.mount, file.mount),
            shm_size: self.shm_size.or(file.shm_size),
            workdir: self.workdir.or(file.workdir),
            command: list(self.command, file.command),
        }
    }

    /// The job for the scheduler. Variables that are handed on, and the working directory, are those of this process.
    pub(crate) fn spec(self) -> Result<JobSpec> {
        if self.command.is_empty() && self.image.is_none() {
            return Err(Failure::new("the job has no command")
                .hint("write it after --, as in: aliquot submit --gpu-core 30 -- python train.py; or as `command` in a file")
                .exit(exit::USAGE));
        }
        let millis = |span: Option<Span>| span.map_or(0, |span| span.duration().as_millis() as u64);
        Ok(JobSpec {
            // Without a command the scheduler names it after the image.
            name: self
                .name
                .map(Text::into_string)
                .or_else(|| self.command.first().map(|program| program_name(program)))
                .unwrap_or_default(),
            queue: self.queue.map(Text::into_string).unwrap_or_default(),
            environment: self.env.into_iter().map(Variable::resolve).collect::<Result<_>>()?,
            work_dir: match (self.workdir, &self.image) {
                (None, Some(_)) => String::new(),
                (Some(given), Some(_)) => {
                    check_is_whole(&given, "in the container")?;
                    given.into_string()
                }
                (given, None) => work_dir(given)?,
            },
            gpu_core_percent: self.gpu_core.map_or(0, CorePercent::percent),
            gpu_core_limit_percent: self.gpu_core_limit.map_or(0, CorePercent::percent),
            priority_class: self.priority_class.map_or(ClassOfJob::Unspecified, ClassOfJob::from).into(),
            gpu_memory_bytes: self.gpu_memory.map_or(0, Bytes::bytes),
            gpus: self.gpus.map_or(0, Count::count),
            cpu_millis: self.cpu.map_or(0, Thousandths::millis),
            memory_bytes: self.memory.map_or(0, Bytes::bytes),
            gang: self.gang.map_or(0, Count::count),
            array: self.array.map(Indices::into_vec).unwrap_or_default(),
            priority: self.priority.map_or(0, Priority::number),
            non_preemptible: self.non_preemptible.unwrap_or(false),
            retries: self.retries.map_or(0, Times::number),
            retry_delay_ms: millis(self.retry_delay),
            time_limit_ms: millis(self.time_limit),
            grace_ms: millis(self.grace),
            restart: match self.restart {
                Some(Restart::Never) => RestartRule::Never.into(),
                Some(Restart::Always) | None => RestartRule::Unspecified.into(),
            },
            node_labels: node_labels(self.label)?,
            nodes: self.node.into_iter().map(Text::into_string).collect(),
            gpu_models: self.gpu_model.into_iter().map(Text::into_string).collect(),
            tolerations: self
                .tolerate
                .into_iter()
                .map(Key::into_pair)
                .map(|(key, value)| Toleration { key, value })
                .collect(),
            after: self.after.into_iter().map(JobId::number).collect(),
            image: self.image.map(Text::into_string).unwrap_or_default(),
            mounts: self.mount.into_iter().map(MountWord::into_mount).collect(),
            shm_bytes: self.shm_size.map_or(0, Bytes::bytes),
            secrets: self.secret.into_iter().map(SecretWord::into_use).collect(),
            command: self.command,
        })
    }
}

/// The labels by key. In a file no key can be there twice.
fn node_labels(given: Vec<Label>) -> Result<HashMap<String, String>> {
    let mut labels = HashMap::new();
    for (key, value) in given.into_iter().map(Label::into_pair) {
        if let Some(before) = labels.insert(key.clone(), value.clone()) {
            return Err(Failure::new(format!("--label {key}={before} and --label {key}={value} name the same label"))
                .hint("a node has one value of a label; for more than one, name the nodes with --node")
                .exit(exit::USAGE));
        }
    }
    Ok(labels)
}

/// The last part of the program's path.
fn program_name(program: &str) -> String {
    program.rsplit('/').find(|part| !part.is_empty()).unwrap_or(program).to_owned()
}

/// Checks that `given` is a path from the root, where the current directory of this process does not count. `place` says
/// where the directory is.
pub(crate) fn check_is_whole(given: &Text, place: &str) -> Result<()> {
    match given.as_str().starts_with('/') {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "--workdir {:?} is no path from the root, and the current directory is one of this machine",
            given.as_str()
        ))
        .hint(format!("give the whole path {place}: --workdir /data/train"))
        .exit(exit::USAGE)),
    }
}

/// The absolute path of `given` below the current directory; without it, the current directory.
fn work_dir(given: Option<Text>) -> Result<String> {
    let given = given.map(Text::into_string).unwrap_or_default();
    if given.starts_with('/') {
        return Ok(given);
    }
    if given == "~" || given.starts_with("~/") {
        return Err(Failure::new(format!("--workdir {given:?} begins with a ~, which only a shell replaces"))
            .hint("give the whole path: --workdir /home/ada/train")
            .exit(exit::USAGE));
    }
    let current = env::current_dir().map_err(|error| {
        Failure::new(format!("the current directory cannot be found: {error}"))
            .hint("give the job's directory as an absolute path: --workdir /data/train")
    })?;
    let dir = if given.is_empty() { current } else { current.join(given) };
    dir.into_os_string().into_string().map_err(|dir| {
        Failure::new(format!("the directory {} is not UTF-8", dir.to_string_lossy()))
            .hint("give another directory with --workdir")
    })
}

#[cfg(test)]
mod tests;
