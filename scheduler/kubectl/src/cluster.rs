//! The cluster that a command is about.

use std::time::Duration;

use aliquot_api_server::{Client, client_with, message};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::args::Global;
use crate::failure::Failure;

/// A server that does not accept a connection within this time counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the cluster, with the namespaces that commands use.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The namespace of pods.
    pub(crate) namespace: String,
    /// The namespace in which the scheduler and the managers run.
    pub(crate) system_namespace: String,
}

impl Cluster {
    /// The cluster that the options and the environment name. No request is sent yet.
    pub(crate) async fn connect(args: &Global) -> Result<Cluster, Failure> {
        let mut config = config(args).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = args.request_timeout.0;
        config.write_timeout = args.request_timeout.0;
        config.reset_reader_on_write = true;
        config.default_retry = false;
        if args.impersonate.is_some() {
            config.auth_info.impersonate.clone_from(&args.impersonate);
            config.auth_info.impersonate_groups = Some(args.impersonate_groups.clone());
        }
        let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = client_with(config)
            .map_err(|error| Failure::new(format!("cannot use the kubeconfig: {}", message(&error))))?;
        Ok(Cluster { client, namespace, system_namespace: args.system_namespace.clone() })
    }
}

/// The configuration that kubectl would use: the named one, else `$KUBECONFIG`, else the user's file, else the cluster
/// in which this process runs as a pod.
async fn config(args: &Global) -> Result<Config, Failure> {
    let Global { context, cluster, user, .. } = args;
    let options = KubeConfigOptions { context: context.clone(), cluster: cluster.clone(), user: user.clone() };
    let (kubeconfig, file) = match &args.kubeconfig {
        Some(file) => (Kubeconfig::read_from(file), format!("the kubeconfig {}", file.display())),
        None => (Kubeconfig::read(), "the kubeconfig".to_owned()),
    };
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        Err(error) => {
            let of_pod = args.kubeconfig.is_none().then(Config::incluster).and_then(Result::ok);
            let hint = "name one with --kubeconfig or $KUBECONFIG";
            return of_pod.ok_or_else(|| Failure::new(format!("cannot use {file}: {error}; {hint}")));
        }
    };
    // The library would take an unknown user for one without credentials.
    if let Some(user) = user.as_ref().filter(|user| kubeconfig.auth_infos.iter().all(|known| known.name != **user)) {
        return Err(Failure::new(format!("cannot use {file}: it has no user {user:?}")));
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.map_err(|error| Failure::new(format!("cannot use {file}: {error}")))
}

/// The failure to read or do something in the cluster.
pub(crate) fn cannot(what: &str, error: &kube::Error) -> Failure {
    Failure::new(format!("cannot {what}: {}", message(error)))
}
