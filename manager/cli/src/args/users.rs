//! The commands for users of the cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use crate::cluster::Text;
use crate::cluster::completion::{queues, users};
use crate::quantity::Span;

/// List or change the users of the cluster on other machines.
///
/// Users of the scheduler's machine may submit jobs without being added. The list contains those whom the scheduler's
/// configuration names. Only administrators and viewers may see the list.
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

/// The changes that an administrator makes.
#[derive(Subcommand, Debug)]
pub(crate) enum UsersCommand {
    Add(UserAddArgs),
    Set(UserSetArgs),
    Remove(UserRemoveArgs),
}

/// The role of a user.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoleWord {
    /// Submits jobs; sees and cancels only the user's own jobs
    User,
    /// Sees everything and changes nothing
    Viewer,
    /// Sees, submits and cancels everything, and changes queues, nodes and users
    Administrator,
}

/// The rights of a user.
#[derive(Args, Debug)]
pub(crate) struct UserRights {
    /// Role of the user [default: user]
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) role: Option<RoleWord>,
    /// Queue to which the user may submit, and the queues below it; may be given several times [default: all queues]
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Vec<Text>,
    /// Local user under whom the jobs run on the nodes: a name or number on the scheduler's machine. Without it the
    /// user cannot submit jobs
    #[arg(long = "as", value_name = "USER")]
    pub(crate) runs_as: Option<Text>,
}

/// Let a user of another machine call the scheduler, and write a file with that user's credentials.
///
/// The file contains a key and a certificate. Anyone with the file has the rights of the user. Only administrators may
/// do this.
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
    /// Lifetime of the certificate [default: 90d]
    #[arg(long, value_name = "TIME")]
    pub(crate) valid: Option<Span>,
    /// If a user of this name exists, make another certificate and revoke the old one; rights that are not given here
    /// stay
    #[arg(long)]
    pub(crate) replace: bool,
    /// Write the credentials into this new file; - for standard output [default: NAME-credentials.toml]
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change the rights of a user of another machine.
///
/// Options that are not given change nothing. The certificate remains valid. Only administrators may do this.
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
    /// Let the user submit to all queues
    #[arg(long, conflicts_with = "queue")]
    pub(crate) all_queues: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a user of another machine.
///
/// The user's certificate is revoked, and the user's calls in progress end, at once. The user's jobs continue;
/// administrators can cancel them. Only administrators may do this.
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
