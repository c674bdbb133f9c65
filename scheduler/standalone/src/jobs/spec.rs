//! The specification of a job, and its checks.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_proto::scheduler::v1 as wire;
use aliquot_proto::secret::{JOB_SECRETS_MAX, is_secret_name, is_secret_variable};
use aliquot_scheduler_core::{
    Bytes, Constraints, DeviceCore, DeviceMemory, DeviceRequest, MilliCpu, NodeOperator, NodeRequirement, NodeTerm,
    Request, Toleration,
};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::JobId;
use super::image::Image;
use super::priority_class::PriorityClass;

/// The most tasks of one job.
const TASKS_MAX: usize = 100_000;
/// The most members of one gang.
const GANG_MAX: u32 = 10_000;
/// The most bytes of a command with its environment: Linux allows no single string that is longer.
const COMMAND_BYTES_MAX: usize = 128 << 10;
/// The most bytes of a job in a request, without its array. Such a message has 4 MiB at most, and a user may have many
/// jobs.
const SPEC_BYTES_MAX: usize = 256 << 10;
/// The most jobs that a job waits for. All of them are looked at when one of them has ended.
const AFTER_MAX: usize = 1_000;
/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 128;
/// The label of nodes that run container images, and its value.
pub(crate) const IMAGES_LABEL: (&str, &str) = ("images", "podman");
/// The label of nodes that can give secrets to jobs, and its value. The scheduler sets it on nodes that report this
/// ability.
pub(crate) const SECRETS_LABEL: (&str, &str) = ("aliquot.dev/secrets", "yes");
/// The label by which a job names a node. The scheduler sets it on each node.
pub(crate) const NODE_LABEL: &str = "aliquot.dev/node";

/// The specification of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JobSpec {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) command: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) work_dir: String,
    pub(crate) gpu_core_percent: u32,
    /// The limit of each device's time; 0: what the job asks for.
    pub(crate) gpu_core_limit_percent: u32,
    /// `None`: the default of the node.
    pub(crate) priority_class: Option<PriorityClass>,
    pub(crate) gpu_memory_bytes: u64,
    pub(crate) gpus: u32,
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
    /// The number of members of each task; 1 if the job has no gang.
    pub(crate) gang: u32,
    pub(crate) has_array: bool,
    /// Indices in ascending order; `[0]` if the job has no array.
    pub(crate) array: Vec<u32>,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    pub(crate) retries: u32,
    pub(crate) retry_delay_ms: u64,
    pub(crate) time_limit_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) restart: Restart,
    pub(crate) node_labels: BTreeMap<String, String>,
    pub(crate) nodes: Vec<String>,
    pub(crate) gpu_models: Vec<String>,
    pub(crate) tolerations: Vec<(String, String)>,
    pub(crate) after: Vec<JobId>,
    /// The image of the containers; `None`: the command runs directly on the node.
    pub(crate) image: Option<Image>,
    pub(crate) secrets: Vec<SecretUse>,
}

/// A secret that a job is given as a file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SecretUse {
    pub(crate) name: String,
    /// The variable that also gets the value; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) variable: String,
}

/// The treatment of a task that has lost a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Restart {
    #[default]
    Always,
    /// The task fails: it may have run, and must never run twice.
    Never,
}

impl JobSpec {
    /// Reads a job from a user's request.
    ///
    /// # Errors
    /// A sentence with the wrong value, and what to do.
    pub(crate) fn read(mut spec: wire::JobSpec) -> Result<Self, String> {
        let indices: BTreeSet<u32> = std::mem::take(&mut spec.array).into_iter().collect();
        let bytes = spec.encoded_len();
        if bytes > SPEC_BYTES_MAX {
            return Err(format!(
                "the job has {bytes} bytes without its array, more than {SPEC_BYTES_MAX}; put what is long into a file that \
                 the job reads"
            ));
        }
        let restart = match wire::Restart::try_from(spec.restart) {
            Ok(wire::Restart::Unspecified) => Restart::Always,
            Ok(wire::Restart::Never) => Restart::Never,
            Err(_) => return Err(format!("restart {} is not known to this scheduler", spec.restart)),
        };
        let image = Image::read(spec.image, spec.mounts, spec.shm_bytes)?;
        let asks_for_gpus = spec.gpu_core_percent > 0 || spec.gpu_memory_bytes > 0 || spec.gpus > 0;
        let mut known = BTreeSet::new();
        spec.after.retain(|other| known.insert(*other));
        let has_array = !indices.is_empty();
        let read = Self {
            name: match &image {
                _ if !spec.name.is_empty() => spec.name,
                Some(image) if spec.command.is_empty() => short(image.name()),
                _ => program(&spec.command),
            },
            queue: spec.queue,
            command: spec.command,
            environment: spec.environment.into_iter().collect(),
            work_dir: spec.work_dir,
            gpu_core_percent: spec.gpu_core_percent,
            gpu_core_limit_percent: spec.gpu_core_limit_percent,
            priority_class: PriorityClass::read(spec.priority_class)?,
            gpu_memory_bytes: spec.gpu_memory_bytes,
            gpus: if asks_for_gpus { spec.gpus.max(1) } else { 0 },
            cpu_millis: spec.cpu_millis,
            memory_bytes: spec.memory_bytes,
            gang: spec.gang.max(1),
            has_array,
            array: if has_array { indices.into_iter().collect() } else { vec![0] },
            priority: spec.priority,
            preemptible: !spec.non_preemptible,
            retries: spec.retries,
            retry_delay_ms: if spec.retry_delay_ms == 0 { 10_000 } else { spec.retry_delay_ms },
            time_limit_ms: spec.time_limit_ms,
            grace_ms: if spec.grace_ms == 0 { 10_000 } else { spec.grace_ms },
            restart,
            node_labels: spec.node_labels.into_iter().collect(),
            nodes: spec.nodes,
            gpu_models: spec.gpu_models,
            tolerations: spec.tolerations.into_iter().map(|taint| (taint.key, taint.value)).collect(),
            after: spec.after,
            image,
            secrets: spec.secrets.into_iter().map(|of| SecretUse { name: of.name, variable: of.variable }).collect(),
        };
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), String> {
        let is_program = |program: &String| !program.is_empty();
        // An image may name its own program.
        if !self.command.first().map_or(self.image.is_some(), is_program) {
            return Err("the job has no command; name the program to run, after --, or an image".to_owned());
        }
        self.image.as_ref().map_or(Ok(()), |image| image.check(&self.environment))?;
        let variables = self.environment.iter().map(|(name, value)| name.len() + value.len() + 2);
        let bytes = self.command.iter().map(|word| word.len() + 1).chain(variables).sum::<usize>();
        if bytes > COMMAND_BYTES_MAX {
            return Err(format!(
                "the command and its environment have {bytes} bytes, more than {COMMAND_BYTES_MAX}; put them into a file"
            ));
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return Err("a word of the command contains a NUL byte, which no program can be given".to_owned());
        }
        if let Some(name) = self.environment.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(format!("{name:?} cannot be the name of a variable: it is empty, or contains '=' or NUL"));
        }
        if let Some((name, _)) = self.environment.iter().find(|(_, value)| value.contains('\0')) {
            return Err(format!("the value of variable {name:?} contains a NUL byte, which no program can be given"));
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(format!("the name has {} bytes; at most {NAME_BYTES_MAX} are possible", self.name.len()));
        }
        if !self.work_dir.is_empty() && !self.work_dir.starts_with('/') {
            return Err(format!("the working directory {:?} is not an absolute path", self.work_dir));
        }
        if self.gpu_core_percent > 100 {
            return Err(format!(
                "gpu-core {} is more than a whole GPU; write at most 100, and the number of GPUs as gpus",
                self.gpu_core_percent
            ));
        }
        self.check_limit()?;
        if self.gpus > u32::from(u16::MAX) {
            return Err(format!("gpus {} is more than any node has", self.gpus));
        }
        if self.gang > GANG_MAX {
            return Err(format!("a gang of {} members is larger than {GANG_MAX}", self.gang));
        }
        if self.array.len() > TASKS_MAX {
            return Err(format!("the array has {} tasks; at most {TASKS_MAX} are possible", self.array.len()));
        }
        if self.array.len().saturating_mul(self.gang as usize) > TASKS_MAX {
            return Err(format!(
                "{} tasks of {} members each are more than {TASKS_MAX}; submit several jobs",
                self.array.len(),
                self.gang
            ));
        }
        if self.after.len() > AFTER_MAX {
            return Err(format!(
                "the job waits for {} jobs; at most {AFTER_MAX} are possible; let it wait for a job that waits for them",
                self.after.len()
            ));
        }
        self.check_secrets()?;
        self.request().validate().map_err(|error| error.to_string())
    }

    /// Checks what is said of the devices beside the request.
    fn check_limit(&self) -> Result<(), String> {
        let (request, limit) = (self.core_percent(), self.gpu_core_limit_percent);
        if self.gpus == 0 && limit > 0 {
            return Err(format!(
                "gpu-core-limit is {limit}, but the job asks for no GPU; give gpu-core, or leave it out"
            ));
        }
        if self.gpus == 0 && self.priority_class.is_some() {
            return Err(
                "a priority class orders jobs on one GPU, but the job asks for none; give gpu-core, or leave the \
                        class out"
                    .to_owned(),
            );
        }
        if limit > 100 {
            return Err(format!("gpu-core-limit is {limit}; it must be at most 100 percent of each GPU"));
        }
        if limit > 0 && limit < request {
            return Err(format!(
                "gpu-core-limit is {limit}, below gpu-core, which is {request}; give a limit of at least {request}"
            ));
        }
        Ok(())
    }

    fn check_secrets(&self) -> Result<(), String> {
        if self.secrets.len() > JOB_SECRETS_MAX {
            return Err(format!(
                "{} secrets are more than {JOB_SECRETS_MAX}; put several into one file",
                self.secrets.len()
            ));
        }
        let (mut names, mut variables) = (BTreeSet::new(), BTreeSet::new());
        for SecretUse { name, variable } in &self.secrets {
            if !is_secret_name(name) {
                return Err(format!("{name:?} cannot be the name of a secret; see: aliquot secrets"));
            }
            if !variable.is_empty() && !is_secret_variable(variable) {
                return Err(format!(
                    "{variable:?} cannot be the variable of secret {name:?}: use letters, digits and '_' only"
                ));
            }
            if !names.insert(name) {
                return Err(format!("secret {name:?} is named twice; name it once"));
            }
            if !variable.is_empty() && (self.environment.contains_key(variable) || !variables.insert(variable)) {
                return Err(format!(
                    "variable {variable:?} would have two values, one of them secret {name:?}; leave one out"
                ));
            }
        }
        Ok(())
    }

    /// The requested part of each device's time.
    fn core_percent(&self) -> u32 {
        match (self.gpu_core_percent, self.gpu_memory_bytes) {
            (0, 0) => 100,
            // Every slice needs some of the device's time. A request for memory alone gets the smallest part.
            (0, _) => 1,
            (percent, _) => percent,
        }
    }

    /// The request of each member.
    pub(crate) fn request(&self) -> Request {
        let memory = match (self.gpu_memory_bytes, self.gpu_core_percent) {
            // Only a number of GPUs is given: these are whole ones.
            (0, 0) => DeviceMemory::Thousandths(1000),
            (0, percent) => DeviceMemory::Thousandths(percent.saturating_mul(10)),
            (bytes, _) => DeviceMemory::Bytes(Bytes::new(bytes)),
        };
        let core = DeviceCore::from_percent(self.core_percent());
        let count = u16::try_from(self.gpus).unwrap_or(u16::MAX);
        let devices = match count {
            0 => DeviceRequest::default(),
            count => DeviceRequest { count, core, memory },
        };
        let mut labels = self.node_labels.clone();
        let mut node_terms = BTreeSet::new();
        let nodes: BTreeSet<String> = self.nodes.iter().cloned().collect();
        if nodes.len() > 1 {
            let requirement = NodeRequirement { key: NODE_LABEL.to_owned(), operator: NodeOperator::In(nodes) };
            node_terms.insert(NodeTerm { requirements: BTreeSet::from([requirement]) });
        } else {
            labels.extend(nodes.into_iter().map(|node| (NODE_LABEL.to_owned(), node)));
        }
        if !self.secrets.is_empty() {
            labels.insert(SECRETS_LABEL.0.to_owned(), SECRETS_LABEL.1.to_owned());
        }
        labels.extend(self.image.iter().map(|_| (IMAGES_LABEL.0.to_owned(), IMAGES_LABEL.1.to_owned())));
        let toleration = |(key, value)| Toleration { key: Some(key), value: Some(value), effect: None };
        let tolerations = self.tolerations.iter().cloned().map(toleration).collect();
        let models = self.gpu_models.iter().cloned().collect();
        Request {
            cpu: MilliCpu::new(self.cpu_millis),
            memory: Bytes::new(self.memory_bytes),
            devices,
            constraints: Constraints { models, labels, tolerations, node_terms, ..Constraints::default() },
            ..Request::default()
        }
    }

    /// The wait in milliseconds before a task is tried again after this number of failures.
    pub(crate) fn retry_delay_ms(&self, failures: u32) -> u64 {
        let doublings = failures.saturating_sub(1).min(16);
        self.retry_delay_ms.saturating_mul(1 << doublings).min(3_600_000.max(self.retry_delay_ms))
    }
}

/// The name of the program that a command starts.
fn program(command: &[String]) -> String {
    let path = command.first().map_or("", String::as_str);
    short(path.rsplit('/').next().unwrap_or(path))
}

/// The name, cut to the greatest allowed length.
fn short(name: &str) -> String {
    let end = (0..=name.len().min(NAME_BYTES_MAX)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name[..end].to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn asks(spec: wire::JobSpec) -> Result<JobSpec, String> {
        JobSpec::read(wire::JobSpec { command: vec!["/usr/bin/train".into(), "--all".into()], ..spec })
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let spec = asks(wire::JobSpec::default()).unwrap();
        assert_eq!((spec.name.as_str(), spec.gang, spec.array.as_slice()), ("train", 1, &[0][..]));
        assert_eq!((spec.gpus, spec.has_array, spec.preemptible), (0, false, true));
        assert_eq!(spec.request().devices, DeviceRequest::default());
    }

    #[test]
    fn a_job_with_secrets_goes_where_they_are_given() {
        let with = |uses: &[(&str, &str)]| {
            let secret = |(name, variable): &(&str, &str)| wire::SecretUse {
                name: (*name).into(),
                variable: (*variable).into(),
            };
            let environment = [("SET".to_owned(), "1".to_owned())].into();
            asks(wire::JobSpec { secrets: uses.iter().map(secret).collect(), environment, ..wire::JobSpec::default() })
        };
        let labels = |spec: JobSpec| spec.request().constraints.labels;
        assert_eq!(labels(with(&[("a", "A"), ("b", "")]).unwrap())[SECRETS_LABEL.0], SECRETS_LABEL.1);
        assert!(labels(with(&[]).unwrap()).is_empty());
        for (wrong, words) in [
            (&[("a/b", "")][..], "\"a/b\" cannot be the name of a secret"),
            (&[("a", "2")], "\"2\" cannot be the variable of secret \"a\""),
            (&[("a", ""), ("a", "A")], "named twice"),
            (&[("a", "SET")], "variable \"SET\" would have two values"),
            (&[("a", "A"), ("b", "A")], "variable \"A\" would have two values"),
            (&[("a", ""); 17], "17 secrets are more than 16"),
        ] {
            let why = with(wrong).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn a_part_of_the_time_asks_for_the_same_part_of_the_memory() {
        let spec = asks(wire::JobSpec { gpu_core_percent: 30, ..Default::default() }).unwrap();
        let DeviceRequest { count, core, memory } = spec.request().devices;
        assert_eq!((count, core.get(), memory), (1, 300, DeviceMemory::Thousandths(300)));
    }

    #[test]
    fn a_number_of_gpus_alone_asks_for_whole_ones() {
        let spec = asks(wire::JobSpec { gpus: 2, ..Default::default() }).unwrap();
        assert_eq!(spec.request().devices, DeviceRequest::whole(2));
    }

    #[test]
    fn memory_alone_asks_for_the_smallest_part_of_the_time() {
        let spec = asks(wire::JobSpec { gpu_memory_bytes: 8 << 30, ..Default::default() }).unwrap();
        let DeviceRequest { count, core, memory } = spec.request().devices;
        assert_eq!((count, core.get(), memory), (1, 10, DeviceMemory::Bytes(Bytes::new(8 << 30))));
    }

    #[test]
    fn a_limit_is_between_the_request_and_a_whole_device() {
        let limited = |gpu_core_percent, gpu_memory_bytes, gpus, gpu_core_limit_percent| {
            asks(wire::JobSpec {
                gpu_core_percent,
                gpu_memory_bytes,
                gpus,
                gpu_core_limit_percent,
                ..Default::default()
            })
        };
        for (core, memory, gpus, limit) in
            [(30, 0, 0, 0), (30, 0, 0, 30), (30, 0, 2, 100), (0, 1, 0, 1), (0, 0, 1, 100)]
        {
            let spec = limited(core, memory, gpus, limit).unwrap();
            assert_eq!((spec.gpu_core_percent, spec.gpu_core_limit_percent), (core, limit));
        }
        for (core, memory, gpus, limit, words) in [
            (30, 0, 0, 101, "gpu-core-limit is 101; it must be at most 100"),
            (30, 0, 0, 29, "gpu-core-limit is 29, below gpu-core, which is 30; give a limit of at least 30"),
            (0, 0, 1, 99, "below gpu-core, which is 100"),
            (0, 0, 0, 60, "gpu-core-limit is 60, but the job asks for no GPU"),
        ] {
            let why = limited(core, memory, gpus, limit).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn a_priority_class_is_known_and_of_a_job_with_devices() {
        let of_class = |gpus, priority_class| asks(wire::JobSpec { gpus, priority_class, ..Default::default() });
        let batch = wire::PriorityClass::Batch.into();
        assert_eq!(of_class(1, batch).unwrap().priority_class, Some(PriorityClass::Batch));
        assert_eq!(of_class(1, 0).unwrap().priority_class, None);
        assert!(of_class(0, batch).unwrap_err().contains("asks for none"));
        assert!(of_class(1, 9).unwrap_err().contains("priority class 9 is not known"));
    }

    #[test]
    fn a_tolerated_taint_has_the_value_that_is_said_and_any_effect() {
        let toleration = wire::Toleration { key: "team".into(), value: String::new() };
        let spec = asks(wire::JobSpec { tolerations: vec![toleration], ..Default::default() }).unwrap();
        let expected = Toleration { key: Some("team".into()), value: Some(String::new()), effect: None };
        assert_eq!(spec.request().constraints.tolerations, [expected].into());
    }

    #[test]
    fn a_job_may_run_on_each_of_the_nodes_that_it_names() {
        let constraints = |nodes: &[&str]| {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            asks(wire::JobSpec { nodes, ..Default::default() }).unwrap().request().constraints
        };
        assert_eq!(constraints(&[]), Constraints::default());
        let label = |node: &str| Constraints {
            labels: [(NODE_LABEL.to_owned(), node.to_owned())].into(),
            ..Constraints::default()
        };
        assert_eq!(constraints(&["a"]), label("a"));
        assert_eq!(constraints(&["a", "a"]), label("a"), "it is the same node");
        let operator = NodeOperator::In(["a", "b"].map(str::to_owned).into());
        let requirements = [NodeRequirement { key: NODE_LABEL.to_owned(), operator }].into();
        let node_terms = [NodeTerm { requirements }].into();
        assert_eq!(constraints(&["b", "a"]), Constraints { node_terms, ..Constraints::default() });
    }

    #[test]
    fn an_array_has_each_index_once() {
        let spec = asks(wire::JobSpec { array: vec![5, 1, 5], ..Default::default() }).unwrap();
        assert!(spec.has_array);
        assert_eq!(spec.array, [1, 5]);
    }

    #[test]
    fn a_job_waits_once_for_each_of_a_thousand_jobs() {
        let spec = asks(wire::JobSpec { after: vec![7, 5, 7, 7], ..Default::default() }).unwrap();
        assert_eq!(spec.after, [7, 5]);
        let after =
            |count: u64| asks(wire::JobSpec { after: (1..=count).chain(1..=count).collect(), ..Default::default() });
        assert_eq!(after(1000).unwrap().after.len(), 1000);
        let why = after(1001).unwrap_err();
        assert!(why.contains("1001 jobs; at most 1000"), "{why}");
    }

    #[test]
    fn no_part_of_a_job_but_its_array_is_large() {
        let array = asks(wire::JobSpec { array: (0..100_000).collect(), ..Default::default() }).unwrap();
        assert_eq!(array.array.len(), 100_000);
        let text = || "x".repeat(SPEC_BYTES_MAX);
        let taints = (0..100_000).map(|number| wire::Toleration { key: number.to_string(), value: String::new() });
        for large in [
            wire::JobSpec { after: vec![1_000_000; 1_000_000], ..Default::default() },
            wire::JobSpec { work_dir: format!("/{}", text()), ..Default::default() },
            wire::JobSpec { node_labels: [("zone".into(), text())].into(), ..Default::default() },
            wire::JobSpec { gpu_models: vec![text()], ..Default::default() },
            wire::JobSpec { tolerations: taints.collect(), ..Default::default() },
        ] {
            let why = asks(large).unwrap_err();
            assert!(why.contains("bytes without its array, more than 262144; put"), "{why}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |spec, word: &str| {
            let error = asks(spec).unwrap_err();
            assert!(error.contains(word), "{error:?} does not name {word:?}");
        };
        wrong(wire::JobSpec { gpu_core_percent: 101, ..Default::default() }, "101");
        wrong(wire::JobSpec { work_dir: "here".into(), ..Default::default() }, "\"here\"");
        wrong(wire::JobSpec { environment: [("A=B".into(), "1".into())].into(), ..Default::default() }, "\"A=B\"");
        wrong(wire::JobSpec { environment: [("A".into(), "1\0".into())].into(), ..Default::default() }, "\"A\"");
        wrong(wire::JobSpec { gang: 10_001, ..Default::default() }, "10001");
        wrong(wire::JobSpec { gang: 10_000, array: (0..20).collect(), ..Default::default() }, "20 tasks");
        wrong(wire::JobSpec { restart: 7, ..Default::default() }, "7");
        assert!(JobSpec::read(wire::JobSpec::default()).unwrap_err().contains("no command"));
    }

    #[test]
    fn an_image_needs_no_command_and_a_node_that_runs_images() {
        let spec = wire::JobSpec { image: "docker.io/team/trainer:1.2".into(), ..Default::default() };
        let spec = JobSpec::read(spec).unwrap();
        assert_eq!((spec.name.as_str(), spec.command.len()), ("trainer", 0));
        assert_eq!(spec.request().constraints.labels.get("images").map(String::as_str), Some("podman"));
        assert!(!asks(wire::JobSpec::default()).unwrap().request().constraints.labels.contains_key("images"));
    }

    #[test]
    fn the_wait_before_a_retry_doubles_up_to_an_hour() {
        let spec = asks(wire::JobSpec { retry_delay_ms: 1000, ..Default::default() }).unwrap();
        assert_eq!([1, 2, 3].map(|failures| spec.retry_delay_ms(failures)), [1000, 2000, 4000]);
        assert_eq!(spec.retry_delay_ms(u32::MAX), 3_600_000);
        let long = JobSpec { retry_delay_ms: u64::MAX, ..spec };
        assert_eq!(long.retry_delay_ms(9), u64::MAX);
    }
}
