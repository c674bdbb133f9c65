//! `aliquot-scheduler backup`: copies the state of a scheduler.

use std::path::PathBuf;

use aliquot_proto::scheduler::v1::BackUpRequest;
use aliquot_scheduler_store::Database;
use anyhow::{Context, Result, bail};

use crate::commands::socket;

#[derive(clap::Args)]
pub(crate) struct BackupArgs {
    /// The new file; an existing file is not replaced
    file: PathBuf,
    /// The socket of the scheduler, if it runs
    #[arg(long, value_name = "PATH", default_value = "/run/aliquot/scheduler.sock")]
    socket: PathBuf,
    /// The scheduler's state directory, which is read if the scheduler does not run
    #[arg(long, value_name = "DIR", default_value = "/var/lib/aliquot/scheduler")]
    state_dir: PathBuf,
}

/// Asks the running scheduler for a backup, or makes one itself if none is running.
pub(crate) fn backup(args: &BackupArgs) -> Result<()> {
    let file = std::path::absolute(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?;
    if std::os::unix::net::UnixStream::connect(&args.socket).is_err() {
        let path = args.state_dir.join("scheduler.db");
        if !path.exists() {
            bail!(
                "no scheduler listens on {}, and there is no {}; check --socket and --state-dir",
                args.socket.display(),
                path.display()
            );
        }
        return Ok(Database::back_up_stopped(&path, &file)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let path = file.to_str().with_context(|| format!("{} is not a path in UTF-8", file.display()))?.to_owned();
        let done = socket::client(&args.socket).await?.back_up(BackUpRequest { path }).await;
        done.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        Ok(())
    })
}
