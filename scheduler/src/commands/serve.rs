//! `aliquot-scheduler serve`: a scheduler for machines without Kubernetes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use aliquot_standalone::config::Config;
use aliquot_standalone::{Server, State};
use anyhow::Result;

use crate::commands::live::{DecisionArgs, block_signals, start_log};

/// The configuration file that is read by default, if it exists.
const FILE: &str = "/etc/aliquot/scheduler.toml";

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
    /// Log level or filter, in the syntax of RUST_LOG
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log_level: String,
}

impl ServeArgs {
    fn config(&self) -> Result<Config> {
        let default = PathBuf::from(FILE);
        let mut config = match &self.config {
            Some(file) => Config::read(file)?,
            None if default.exists() => Config::read(&default)?,
            None => Config::default(),
        };
        config.listen = self.listen.unwrap_or(config.listen);
        config.address = self.address.clone().unwrap_or(config.address);
        config.socket = self.socket.clone().unwrap_or(config.socket);
        config.state_dir = self.state_dir.clone().unwrap_or(config.state_dir);
        config.metrics_address = self.metrics_address.or(config.metrics_address);
        Ok(config)
    }
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let config = args.config()?;
    start_log(&args.log_level)?;
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
    let server = Server::start(&config, args.decisions.decisions(), state)?;
    if let Some(invitation) = server.invitation() {
        println!(
            "No node has joined yet. On the first one, run as root, within an hour:\n\n    {}\n",
            invitation.command
        );
        println!("More tokens: aliquot token");
    }
    say_ready();
    Ok(server.run(&asked)?)
}
