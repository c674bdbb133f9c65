//! `aliquot-scheduler dev`: another name for `aliquot dev`, because that program contains the node manager too.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DevArgs {
    /// As for `aliquot dev`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process with `aliquot dev`. Returns only if that fails.
pub(crate) fn dev(args: &DevArgs) -> Result<()> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let beside = own.with_file_name("aliquot");
    let program = if beside.is_file() { beside } else { "aliquot".into() };
    let error = Command::new(&program).arg("dev").args(&args.arguments).exec();
    Err(error).with_context(|| {
        format!("cannot run {} dev; install the command `aliquot` beside {}", program.display(), own.display())
    })
}
