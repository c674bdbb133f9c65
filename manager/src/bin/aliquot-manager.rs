//! The node manager's daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use aliquot_manager::config::{Config, Settings};
use aliquot_manager::{daemon, relay, runtime_mount};
use clap::Parser;

/// The node manager of Aliquot: gives containers exact parts of this node's GPUs, and watches their use.
///
/// It runs in the foreground, logs to standard error, and ends on SIGTERM or SIGINT. Programs in slices then keep
/// running, within their limits. As root it serves all users of the node; as an ordinary user it serves only that user.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  aliquot-manager
  aliquot-manager --metrics-address 127.0.0.1:9405 --log-format json
  aliquot-manager --join alq1.eyJzZWNyZX... --scheduler head:7460
  aliquot-manager --config ./manager.toml --log-level info,aliquot_manager::attach=debug"
)]
struct Arguments {
    /// Configuration file [default: /etc/aliquot/manager.toml, or $XDG_CONFIG_HOME/aliquot/manager.toml for an ordinary
    /// user, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Mount a memory file system on the runtime directory, unless one is mounted there, and exit. This is for an init
    /// container that has the node's /run with mount propagation
    #[arg(long)]
    mount_runtime_dir: bool,
    /// Check whether the configuration and the given flags can be used, and exit: with status 0 if they can
    #[arg(long, conflicts_with = "mount_runtime_dir")]
    check_config: bool,
    /// If another manager uses the same directories, wait until it ends instead of failing. This is for an upgrade that
    /// starts the new manager first
    #[arg(long)]
    stand_by: bool,
    /// Run as a relay: kubelet stays connected to the relay while managers are replaced. This needs relay = true in the
    /// configuration's table [kubernetes]
    #[arg(long, conflicts_with_all = ["mount_runtime_dir", "stand_by"])]
    relay: bool,
    /// Supervise the job in this directory. Started by the manager itself
    #[arg(long, value_name = "DIR", hide = true)]
    supervise: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

fn main() -> ExitCode {
    daemon::end_at_panics();
    let arguments = Arguments::parse();
    if let Some(dir) = &arguments.supervise {
        return aliquot_agent::supervise(dir);
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aliquot-manager: error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let file = arguments.config.as_deref();
    let mut config = Config::load(arguments.settings, file)?;
    config.stands_by = arguments.stand_by;
    if arguments.check_config {
        daemon::check(&config)?;
        match Config::file(file) {
            Some(file) => println!("the configuration file {} can be used", file.display()),
            None => println!("there is no configuration file: the defaults are used"),
        }
        return Ok(());
    }
    if arguments.mount_runtime_dir {
        Ok(runtime_mount::mount(&config.runtime_dir)?)
    } else if arguments.relay {
        Ok(relay::run(&config)?)
    } else {
        Ok(daemon::run(config)?)
    }
}
