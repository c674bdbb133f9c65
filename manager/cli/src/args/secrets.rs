//! The commands for secrets of jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::cluster::Text;
use crate::cluster::completion::{queues, secrets};

/// List the secrets that jobs can be given, or change them.
///
/// A job that names a secret finds it as a file that only the job's user can read. Secrets are the user's own, or a queue's:
/// for every job in that queue and in those below it. No command shows the value of a secret.
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

/// What can be done with secrets; `aliquot secrets` alone lists them.
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

/// Keep a secret, in place of an older one of this name.
///
/// Jobs that start from now on are given this value; those that run keep what they have. The scheduler keeps it encrypted.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot secrets set hf-token --from-file token.txt
  pass show hf-token | aliquot secrets set hf-token --from-file -
  aliquot secrets set registry --from-file auth.json --queue team-a")]
pub(crate) struct SecretSetArgs {
    /// Name of the secret, and of the file that jobs find
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(secrets))]
    pub(crate) name: Text,
    /// The file with its value, at most 64 KiB; - reads standard input
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) from_file: PathBuf,
    /// It is for all jobs in this queue and in those below it, instead of the own jobs. For administrators
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Option<Text>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a secret.
///
/// Jobs that run keep what they have. Jobs that name it and start later fail.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot secrets remove hf-token
  aliquot secrets remove registry --queue team-a")]
pub(crate) struct SecretRemoveArgs {
    /// Name of the secret
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(secrets))]
    pub(crate) name: Text,
    /// It is one of this queue, instead of the own ones. For administrators
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Option<Text>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
