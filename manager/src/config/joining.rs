//! The flags that make a node part of a cluster without Kubernetes.

use aliquot_agent::settings::Settings;
use clap::Args;

/// What can be set as a flag of the table `[cluster]`.
#[derive(Args, Clone, Debug, Default)]
pub struct Joining {
    /// Join a cluster without Kubernetes with this token, which `aliquot token` prints. A node that has joined once
    /// needs no token
    #[arg(long, value_name = "TOKEN")]
    join: Option<String>,
    /// Address of the cluster's scheduler; the addresses of several schedulers are separated by commas
    #[arg(long, value_name = "HOST:PORT")]
    scheduler: Option<String>,
    /// Name of this node in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

impl Joining {
    /// The settings of the configuration file, changed by these flags.
    pub(super) fn change(self, file: Option<Settings>) -> Option<Settings> {
        let Joining { join, scheduler, node_name } = self;
        if join.is_none() && scheduler.is_none() && node_name.is_none() {
            return file;
        }
        let mut settings = file.unwrap_or_default();
        settings.token = join.or(settings.token);
        settings.scheduler = scheduler.or(settings.scheduler);
        settings.node_name = node_name.or(settings.node_name);
        Some(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_the_file() {
        assert_eq!(Joining::default().change(None), None);
        let flags = Joining { join: Some("t".into()), scheduler: Some("head:1".into()), node_name: None };
        let file = flags.change(None);
        let flags = Joining { scheduler: Some("head:2".into()), ..Joining::default() };
        let settings = flags.change(file).unwrap();
        assert_eq!((settings.token.as_deref(), settings.scheduler.as_deref()), (Some("t"), Some("head:2")));
    }
}
