//! The command line: commands, options, and the text of their help.

mod cluster;
mod node;
mod secrets;
mod slices;
mod trial;
mod users;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Effects};
use clap::builder::{OsStringValueParser, Styles, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use cluster::{
    AttachArgs, CancelArgs, ExplainArgs, JobArgs, JobsArgs, LogsArgs, NodeRemoveArgs, NodesArgs, NodesCommand,
    PortForwardArgs, QueueRemoveArgs, QueueSetArgs, QueuesArgs, QueuesCommand, SubmitArgs, TokenArgs,
};
pub(crate) use node::{DescribeArgs, DoctorArgs, EventsArgs, PsArgs, TopArgs};
pub(crate) use secrets::{SecretRemoveArgs, SecretSetArgs, SecretsArgs, SecretsCommand};
pub(crate) use slices::{
    ExecArgs, RunArgs, ShareArgs, SliceCommand, SliceCreateArgs, SliceLsArgs, SliceResizeArgs, SliceRmArgs,
};
pub(crate) use trial::{DemoArgs, DemoWorkerArgs, DevArgs, LoadArgs};
pub(crate) use users::{RoleWord, UserAddArgs, UserRemoveArgs, UserRights, UserSetArgs, UsersArgs, UsersCommand};

/// The variable that names the node manager's socket.
const SOCKET_VARIABLE: &str = "ALIQUOT_SOCKET";
/// The variable that names the scheduler's socket, or a file of credentials.
const SCHEDULER_VARIABLE: &str = "ALIQUOT_SCHEDULER";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .usage(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

/// Gives commands and containers exact parts of a GPU: a percentage of its time, and a number of bytes of its memory.
///
/// A part is called a slice. It is enforced for unmodified programs, on any NVIDIA GPU. The node manager,
/// aliquot-manager, keeps the slices of a machine; where it does not run, `run` and `demo` work without it. The
/// scheduler, aliquot-scheduler, places jobs on the machines of a cluster.
#[derive(Parser, Debug)]
#[command(
    name = "aliquot",
    version,
    styles = STYLES,
    max_term_width = 100,
    after_long_help = "\
Examples:
  aliquot demo                                        See two programs share one GPU 30/70; needs no GPU
  aliquot run --gpu-core 30 --gpu-memory 4GiB -- python train.py
                                                      Run a command in a slice of its own
  aliquot slice create train --gpu-core 30 --gpu-memory 4GiB
  podman run --device aliquot.dev/slice=train …       Run a container in a slice
  aliquot ps                                          Show the use of each slice
  aliquot doctor                                      Check this machine, and suggest repairs
  aliquot submit --gpu-core 30 -- python train.py     Run a command on a node of the cluster
  aliquot jobs                                        List the running and waiting jobs
  aliquot dev                                         Try a whole cluster on this machine; needs no GPU

Exit status:
  0  done          1  failed          2  the command line is wrong
  `aliquot run` and `aliquot submit --wait` pass on the status of the command: see their help.

Environment:
  ALIQUOT_SOCKET      Unix socket of the node manager
  ALIQUOT_SCHEDULER   Unix socket of the scheduler, or a file of credentials for one on another machine
  NO_COLOR            no colours"
)]
pub(crate) struct Cli {
    /// Unix socket of the node manager [default: $XDG_RUNTIME_DIR/aliquot/manager.sock, then /run/aliquot/manager.sock]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options",
        value_parser = OsStringValueParser::new().try_map(socket_path)
    )]
    pub(crate) socket: Option<PathBuf>,
    /// Unix socket of the scheduler, or a file of credentials for one on another machine, which `aliquot users add` writes
    /// [default: $XDG_RUNTIME_DIR/aliquot/scheduler.sock, then $XDG_CONFIG_HOME/aliquot/credentials.toml (or
    /// ~/.config/aliquot/credentials.toml), then /run/aliquot/scheduler.sock; of root: /run/aliquot/scheduler.sock, then
    /// /etc/aliquot/credentials.toml]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options",
        value_parser = OsStringValueParser::new().try_map(scheduler_path)
    )]
    pub(crate) scheduler: Option<PathBuf>,
    /// Give up if the node manager or the scheduler has not answered for this long [default: 5 for questions, 30 for changes]
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        help_heading = "Global options",
        allow_negative_numbers = true,
        value_parser = interval
    )]
    pub(crate) timeout: Option<Duration>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The socket of the node manager that is named, by the option or else by the variable.
    ///
    /// # Errors
    /// A sentence, if the variable is empty.
    pub(crate) fn named_socket(&mut self) -> Result<Option<PathBuf>, String> {
        named(self.socket.take(), SOCKET_VARIABLE)
    }

    /// The same for the scheduler.
    pub(crate) fn named_scheduler(&mut self) -> Result<Option<PathBuf>, String> {
        named(self.scheduler.take(), SCHEDULER_VARIABLE)
    }
}

/// The value of an option, or else of its variable. If clap read the variable, its messages about wrong command lines
/// would show the option as one that must be given.
fn named(option: Option<PathBuf>, variable: &str) -> Result<Option<PathBuf>, String> {
    match option {
        Some(path) => Ok(Some(path)),
        None => std::env::var_os(variable).map(|path| path_or_unset(path, variable)).transpose(),
    }
}

fn socket_path(path: OsString) -> Result<PathBuf, String> {
    path_or_unset(path, SOCKET_VARIABLE)
}

fn scheduler_path(path: OsString) -> Result<PathBuf, String> {
    path_or_unset(path, SCHEDULER_VARIABLE)
}

fn path_or_unset(path: OsString, variable: &str) -> Result<PathBuf, String> {
    match path.is_empty() {
        true => Err(format!("the path is empty; name the socket, or unset {variable} for the default")),
        false => Ok(path.into()),
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(RunArgs),
    Exec(ExecArgs),
    #[command(subcommand)]
    Slice(SliceCommand),
    Ps(PsArgs),
    Top(TopArgs),
    Describe(DescribeArgs),
    Events(EventsArgs),
    Submit(Box<SubmitArgs>),
    Jobs(JobsArgs),
    Job(JobArgs),
    Logs(LogsArgs),
    Attach(AttachArgs),
    PortForward(PortForwardArgs),
    Cancel(CancelArgs),
    Explain(ExplainArgs),
    Queues(QueuesArgs),
    Nodes(NodesArgs),
    Token(TokenArgs),
    Users(UsersArgs),
    Secrets(SecretsArgs),
    Doctor(DoctorArgs),
    Demo(DemoArgs),
    Dev(DevArgs),
    Load(LoadArgs),
    Completions(CompletionsArgs),
    /// A worker of `aliquot demo`: a plain driver-API program.
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
    /// The child of `aliquot doctor`. It reports the libraries that were loaded at its start.
    #[command(hide = true)]
    DoctorProbe,
}

/// Reads an interval of 0.1 to 3600 seconds.
fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("write seconds from 0.1 to 3600, such as 1 or 0.5".to_owned()),
    }
}

/// Print the completion script for a shell.
///
/// With the script the shell completes commands, options, and the names of slices, jobs, queues and nodes.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot completions bash > /etc/bash_completion.d/aliquot
  aliquot completions zsh > \"${fpath[1]}/_aliquot\"
  aliquot completions fish > ~/.config/fish/completions/aliquot.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}
