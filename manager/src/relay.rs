//! The relay's own process: it runs from start to signal.

use std::env;

use aliquot_kubernetes::relay::{self, Settings};
use tokio::sync::watch;

use crate::config::{Config, KubernetesMode};
use crate::daemon::{End, RunError};
use crate::logging;
use crate::procfs::Stat;

/// The variable that a DaemonSet sets to its pod's UID.
const POD_UID_VARIABLE: &str = "POD_UID";

/// Runs a relay in this process until SIGTERM or SIGINT.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: &Config) -> Result<(), RunError> {
    let kubernetes = config.kubernetes.as_ref().filter(|kubernetes| kubernetes.relay).ok_or(RunError::NoRelay)?;
    logging::start(config)?;
    let settings = Settings {
        is_dra: kubernetes.mode == KubernetesMode::Dra,
        meeting: kubernetes.meeting.clone(),
        kubelet_dir: kubernetes.kubelet_dir.clone(),
        instance: env::var(POD_UID_VARIABLE).ok().filter(|uid| !uid.is_empty()).unwrap_or_else(own_name),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Signals)?;
    runtime.block_on(async {
        let mut end = End::listen().map_err(RunError::Signals)?;
        let (ending, ended) = watch::channel(false);
        let relay = relay::run(settings, ended);
        let asked = async {
            end.asked_for().await;
            ending.send_replace(true);
        };
        tokio::join!(relay, asked);
        Ok(())
    })
}

/// A name that no other process of this machine has while this one runs.
fn own_name() -> String {
    let pid = std::process::id();
    let start_time = Stat::of(pid).map(|stat| stat.start_time).unwrap_or_default();
    format!("{pid}-{start_time}")
}
