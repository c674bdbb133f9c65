//! The commands for users of the cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use crate::cluster::Text;
use crate::cluster::completion::{queues, users};
use crate::quantity::Span;

/// List who may use the cluster from other machines, or change that.
///
/// Users of the scheduler's machine may submit jobs without being added; they are listed only if the scheduler's
/// configuration names them. Only administrators and viewers may see the list.
#[derive(Args, Debug)]
#[command(
    visible_alias = "user",
    args_conflicts_with_subcommands = true,
    after_long_help = "\
Examples:
  aliquot users
  aliquot users add ada --queue team-a --as ada
  aliquot users set ada --role viewer
  aliquot users remove ada"
)]
pub(crate) struct UsersArgs {
    #[command(subcommand)]
    pub(crate) command: Option<UsersCommand>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What an administrator changes of users on other machines.
#[derive(Subcommand, Debug)]
pub(crate) enum UsersCommand {
    Add(UserAddArgs),
    Set(UserSetArgs),
    Remove(UserRemoveArgs),
}

/// What somebody may do in general.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoleWord {
    /// Submits jobs, and sees and cancels the own ones
    User,
    /// Sees everything and changes nothing
    Viewer,
    /// Sees, submits and cancels everything, and changes queues, nodes and users
    Administrator,
}

/// What a user may do.
#[derive(Args, Debug)]
pub(crate) struct UserRights {
    /// What the user may do in general [default: user]
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) role: Option<RoleWord>,
    /// A queue that the user may submit to, with those below it; may be given several times [default: all]
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Vec<Text>,
    /// The local user as whom the jobs run on the nodes, by name or number on the scheduler's machine; without one the
    /// user can submit no jobs
    #[arg(long = "as", value_name = "USER")]
    pub(crate) runs_as: Option<Text>,
}

/// Let a user of another machine call the scheduler, and write the file with which that user does.
///
/// The file has a key and a certificate. Whoever has it can do what the user may. Only administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot users add ada --queue team-a --as ada
  aliquot users add board --role viewer --valid 365d
  aliquot users add ada --replace                     # another certificate; the old one ends at once

On the other machine, where ada has put the file:
  aliquot --scheduler ada-credentials.toml jobs
  mv ada-credentials.toml ~/.config/aliquot/credentials.toml && aliquot jobs")]
pub(crate) struct UserAddArgs {
    /// Name of the user
    #[arg(value_name = "NAME")]
    pub(crate) name: Text,
    #[command(flatten)]
    pub(crate) rights: UserRights,
    /// How long the certificate is valid [default: 90d]
    #[arg(long, value_name = "TIME")]
    pub(crate) valid: Option<Span>,
    /// There may be a user of this name: what is given here takes the place of what that user may do, and the old
    /// certificate ends
    #[arg(long)]
    pub(crate) replace: bool,
    /// Write the credentials into this new file; - for standard output [default: NAME-credentials.toml]
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change what a user of another machine may do.
///
/// Options that are not given change nothing, and the certificate stays good. Only administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot users set ada --queue team-a --queue team-b
  aliquot users set ada --all-queues --as ada")]
pub(crate) struct UserSetArgs {
    /// Name of the user
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(users))]
    pub(crate) name: Text,
    #[command(flatten)]
    pub(crate) rights: UserRights,
    /// The user may submit to all queues
    #[arg(long, conflicts_with = "queue")]
    pub(crate) all_queues: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a user of another machine: the certificate ends at once, and so do calls that are under way.
///
/// Jobs of the user run on; administrators can cancel them. Only administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot users remove ada")]
pub(crate) struct UserRemoveArgs {
    /// Name of the user
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(users))]
    pub(crate) name: Text,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
