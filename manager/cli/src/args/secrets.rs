//! The commands for secrets of jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::cluster::Text;
use crate::cluster::completion::{queues, secrets};

/// List or change the secrets of jobs.
///
/// A job that names a secret gets its value as a file that only the job's user can read. A secret belongs to a user or
/// to a queue. The secret of a queue is for every job in that queue and in the queues below it. No command shows the
/// value of a secret.
#[derive(Args, Debug)]
#[command(
    visible_alias = "secret",
    args_conflicts_with_subcommands = true,
    after_long_help = "\
Examples:
  aliquot secrets set hf-token --from-file token.txt
  aliquot submit --secret hf-token -- sh -c 'hf login --token \"$(cat $ALIQUOT_SECRETS/hf-token)\"'
  aliquot submit --secret hf-token:HF_TOKEN -- python train.py
  aliquot secrets
  aliquot secrets remove hf-token"
)]
pub(crate) struct SecretsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SecretsCommand>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The commands for secrets. `aliquot secrets` alone lists them.
#[derive(Subcommand, Debug)]
pub(crate) enum SecretsCommand {
    #[command(hide = true)]
    List(SecretListArgs),
    Set(SecretSetArgs),
    Remove(SecretRemoveArgs),
}

/// List the secrets, as `aliquot secrets` does.
#[derive(Args, Debug)]
pub(crate) struct SecretListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Store a secret, or replace its value.
///
/// Jobs that start later get the new value; running jobs keep the old one. The scheduler stores the value encrypted.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot secrets set hf-token --from-file token.txt
  pass show hf-token | aliquot secrets set hf-token --from-file -
  aliquot secrets set registry --from-file auth.json --queue team-a")]
pub(crate) struct SecretSetArgs {
    /// Name of the secret, and of the file that jobs get
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(secrets))]
    pub(crate) name: Text,
    /// File with the value, at most 64 KiB; - reads standard input
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) from_file: PathBuf,
    /// Store a secret of this queue instead of your own: for all jobs in the queue and in the queues below it. Only
    /// administrators may do this
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Option<Text>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a secret.
///
/// Running jobs keep the value. A job that names the secret and starts later fails.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot secrets remove hf-token
  aliquot secrets remove registry --queue team-a")]
pub(crate) struct SecretRemoveArgs {
    /// Name of the secret
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(secrets))]
    pub(crate) name: Text,
    /// Remove a secret of this queue instead of your own. Only administrators may do this
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Option<Text>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
