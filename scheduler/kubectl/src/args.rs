//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use aliquot_dialects::quantity;
use aliquot_terminal::number::{at_least, from_to};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

/// Shows the use of a cluster's GPUs, and explains why a pod waits.
#[derive(Debug, Parser)]
#[command(name = "kubectl-aliquot", bin_name = "kubectl aliquot", version)]
pub struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Kubeconfig file that names the API server [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig [default: the context's]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig [default: the context's]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) user: Option<String>,
    /// User to impersonate, for example system:serviceaccount:default:ci
    #[arg(long = "as", value_name = "NAME", global = true)]
    pub(crate) impersonate: Option<String>,
    /// Group to impersonate, can be given several times
    #[arg(long = "as-group", value_name = "NAME", global = true, requires = "impersonate")]
    pub(crate) impersonate_groups: Vec<String>,
    /// Longest wait for an answer of the API server, as 30, 30s or 2m; 0: no limit
    #[arg(long, value_name = "TIME", global = true, default_value = "30s")]
    pub(crate) request_timeout: RequestTimeout,
    /// Namespace of the pods [default: the context's]
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,
    /// Namespace of Aliquot's scheduler and managers
    #[arg(long, value_name = "NAME", global = true, default_value = "aliquot-system")]
    pub(crate) system_namespace: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Explain why a pod waits or was evicted and suggest changes, or show its parts of devices
    Explain(ExplainArgs),
    /// Show the queues with their guarantees, limits, use and waiting requests
    Queues(OutputArgs),
    /// Print what the scheduler knows, as a file for `aliquot-scheduler replay`, `explain` and `simulate`
    Snapshot,
    /// Show the pods' parts of devices
    Slices(SlicesArgs),
    /// Show the pods' parts of devices with their use, as measured by the nodes' managers
    Top(SlicesArgs),
    /// Predict where pods would start and which pods they would evict, or why they would wait, without creating them
    ///
    /// The exit code is 0 if all of them would start, and 3 if some would wait.
    WhatIf(WhatIfArgs),
}

/// How an answer is printed: for people, or as JSON or YAML for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// JSON with exact figures.
    Json,
    /// The same as YAML.
    Yaml,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Pod, as NAME or pod/NAME, or NAME of a workload without pods
    pub(crate) pod: PodName,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SlicesArgs {
    /// Show all namespaces, and also unallocated devices
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("pods").args(["filename", "gpu_core"]).required(true).multiple(true)))]
pub(crate) struct WhatIfArgs {
    /// Manifest of a pod, or of a workload that creates pods; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) filename: Option<PathBuf>,
    /// Share of each GPU's time, in percent; replaces the request of the manifest
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = from_to(1_u32..=100))]
    pub(crate) gpu_core: Option<u32>,
    /// Memory on each GPU, for example 8Gi [default: the same percentage as --gpu-core]
    #[arg(long, value_name = "AMOUNT", requires = "gpu_core")]
    pub(crate) gpu_memory: Option<Bytes>,
    /// Number of GPUs for each pod
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "gpu_core", allow_negative_numbers = true, value_parser = at_least(1_u16))]
    pub(crate) gpus: u16,
    /// Number of pods [default: 1, or the number of the manifest's workload]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = from_to(1_u32..=1000))]
    pub(crate) count: Option<u32>,
    /// Treat the pods as a gang: all start together or none does
    #[arg(long)]
    pub(crate) gang: bool,
    /// Queue of the pods [default: the queue of the manifest or of the namespace]
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Priority of the pods [default: the priority of the manifest, or 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The name of a pod, also as kubectl prints it: `pod/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName(pub(crate) String);

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<PodName, String> {
        let name = match text.split_once('/') {
            None => text,
            Some(("pod" | "pods" | "po", name)) => name,
            Some((kind, _)) => return Err(format!("{kind:?} is not a pod; name a pod as NAME or pod/NAME")),
        };
        match name.is_empty() || name.contains('/') {
            true => Err("name a pod as NAME or pod/NAME, and its namespace with -n".to_owned()),
            false => Ok(PodName(name.to_owned())),
        }
    }
}

/// A number of bytes: a quantity as Kubernetes writes it, or with a B behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let of_kubernetes = text.strip_suffix("iB").map_or_else(|| text.to_owned(), |number| format!("{number}i"));
        match quantity::bytes(&of_kubernetes) {
            Ok(bytes) if bytes > 0 => Ok(Bytes(bytes)),
            Ok(_) => Err("the amount of memory is 0; leave --gpu-memory out to get the same percentage as of the time"
                .to_owned()),
            Err(_) => Err(format!("{text:?} is not an amount of memory; write for example 8Gi or 512Mi")),
        }
    }
}

/// A time as kubectl reads it: a number of seconds, or numbers with units. `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTimeout(pub(crate) Option<Duration>);

impl FromStr for RequestTimeout {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestTimeout, String> {
        let time = match text.parse::<u64>() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => text.parse::<jiff::SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok()),
        };
        let time = time.ok_or_else(|| format!("{text:?} is not a time; write for example 30, 30s or 2m"))?;
        Ok(RequestTimeout((!time.is_zero()).then_some(time)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_kubectl_does() {
        for (text, seconds) in [("5", Some(5)), ("30s", Some(30)), ("1m30s", Some(90)), ("0", None), ("0s", None)] {
            assert_eq!(text.parse(), Ok(RequestTimeout(seconds.map(Duration::from_secs))), "{text}");
        }
        for text in ["", "soon", "-1", "-5s", "1x"] {
            assert!(text.parse::<RequestTimeout>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    fn refused(arguments: &[&str]) -> String {
        let parsed = Cli::try_parse_from([&["kubectl-aliquot"], arguments].concat());
        parsed.expect_err("this cannot be asked").to_string()
    }

    #[test]
    fn who_asks_what_if_without_pods_is_told_both_ways_to_name_them() {
        let said = refused(&["what-if"]);
        assert!(said.contains("--filename <FILE>|--gpu-core <PERCENT>"), "{said}");
        assert!(Cli::try_parse_from(["kubectl-aliquot", "what-if", "-f", "pod.yaml", "--gpu-core", "30"]).is_ok());
    }

    #[test]
    fn numbers_that_cannot_be_are_told_which_can() {
        let said = refused(&["what-if", "--gpu-core", "-1"]);
        assert!(said.contains("write a number from 1 to 100"), "{said}");
        let said = refused(&["what-if", "--gpu-core", "30", "--gpus", "0"]);
        assert!(said.contains("write a whole number, 1 or more"), "{said}");
    }

    #[test]
    fn options_of_all_commands_stand_apart() {
        let mut command = <Cli as clap::CommandFactory>::command();
        command.build();
        let help = command.find_subcommand_mut("queues").expect("a command").render_long_help().to_string();
        let (own, global) = help.split_once("Global options:").expect("a heading");
        assert!(own.contains("--output") && global.contains("--kubeconfig"), "{help}");
    }

    #[test]
    fn pods_are_named_as_kubectl_does() {
        for text in ["train", "pod/train", "pods/train", "po/train"] {
            assert_eq!(text.parse(), Ok(PodName("train".into())), "{text}");
        }
        for text in ["", "pod/", "job/train", "a/b/c", "pod/b/c"] {
            assert!(text.parse::<PodName>().is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_read_as_kubernetes_does() {
        for (text, bytes) in
            [("8Gi", 8 << 30), ("8GiB", 8 << 30), ("1.5Gi", 3 << 29), ("1.1Gi", 1_181_116_006), ("8G", 8_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "0", "0Gi", "-1Gi", "8GB", "NaN", "iB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
