//! `aliquot-scheduler snapshot`: prints what a running scheduler knows.

use std::path::PathBuf;

use aliquot_proto::scheduler::v1::TakeSnapshotRequest;
use anyhow::{Result, anyhow};

use crate::commands::{print_text, socket};

#[derive(clap::Args)]
pub(crate) struct SnapshotArgs {
    /// The socket of the scheduler
    #[arg(long, value_name = "PATH", default_value = "/run/aliquot/scheduler.sock")]
    socket: PathBuf,
}

/// Asks the running scheduler for a snapshot, and prints it.
pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let refused = |status: tonic::Status| anyhow!("{}", status.message());
        let mut client = socket::client(&args.socket).await?;
        let mut parts = client.take_snapshot(TakeSnapshotRequest {}).await.map_err(refused)?.into_inner();
        let mut text = Vec::new();
        while let Some(part) = parts.message().await.map_err(refused)? {
            text.extend(part.data);
        }
        print_text(&String::from_utf8(text)?)
    })
}
