//! `aliquot-scheduler serve`: a scheduler for machines without Kubernetes.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use aliquot_scheduler::live::DecisionArgs;
use aliquot_standalone::config::Config;
use aliquot_standalone::{Server, State};
use anyhow::{Result, anyhow};

use crate::commands::live::{block_signals, start_log};

/// The configuration file that is read by default, if it exists.
const FILE: &str = "/etc/aliquot/scheduler.toml";
/// The log level if neither the option nor the configuration says one.
const LOG_LEVEL: &str = "info";

#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Configuration file [default: /etc/aliquot/scheduler.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address on which to listen for nodes [default: 0.0.0.0:7460]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Address by which nodes reach this scheduler [default: this machine's name and the port of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Unix socket for users [default: /run/aliquot/scheduler.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory for the scheduler's state [default: /var/lib/aliquot/scheduler]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Address on which to serve /metrics and /healthz, without encryption [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_address: Option<SocketAddr>,
    #[command(flatten)]
    decisions: DecisionArgs,
    /// Log level or filter, in the syntax of RUST_LOG [default: info]
    #[arg(long, value_name = "FILTER")]
    log_level: Option<String>,
}

impl ServeArgs {
    fn file(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(FILE))
    }

    fn config(&self) -> Result<Config> {
        let is_there = self.config.is_some() || self.file().exists();
        let mut config = if is_there { Config::read(self.file())? } else { Config::default() };
        config.listen = self.listen.unwrap_or(config.listen);
        config.address = self.address.clone().unwrap_or(config.address);
        config.socket = self.socket.clone().unwrap_or(config.socket);
        config.state_dir = self.state_dir.clone().unwrap_or(config.state_dir);
        config.metrics_address = self.metrics_address.or(config.metrics_address);
        Ok(config)
    }

    fn decisions(&self, config: &Config) -> Result<DecisionArgs> {
        self.decisions.or(config).map_err(|why| anyhow!("{}: {why}", self.file().display()))
    }

    fn start_log(&self, config: &Config) -> Result<()> {
        match (&self.log_level, &config.log_level) {
            (None, Some(level)) => start_log(&format!("{}: log_level", self.file().display()), level),
            (given, _) => start_log("--log-level", given.as_deref().unwrap_or(LOG_LEVEL)),
        }
    }
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let config = args.config()?;
    let decisions = args.decisions(&config)?;
    args.start_log(&config)?;
    let signals = block_signals()?;
    let (ask, asked) = mpsc::channel();
    thread::spawn(move || {
        if signals.wait().is_ok() {
            _ = ask.send(());
        }
    });
    // Without systemd there is no socket to notify.
    let say_ready = || _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let Some(state) = State::wait(&config, say_ready, &asked)? else { return Ok(()) };
    let server = Server::start(&config, decisions.decisions(), decisions.snapshots(), state)?;
    if let Some(invitation) = server.invitation() {
        // Whether anybody can read it does not matter to the scheduler.
        let _ = writeln!(
            io::stdout(),
            "No node has joined yet. On the first one, run as root, within an hour:\n\n    {}\n\n\
             More tokens: aliquot token",
            invitation.command
        );
    }
    say_ready();
    Ok(server.run(&asked)?)
}
