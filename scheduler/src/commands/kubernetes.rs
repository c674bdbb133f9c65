//! `aliquot-scheduler kubernetes`: a scheduler for the pods that name it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread;

use aliquot_kubernetes_scheduler::{Config, ExtenderListener, Listeners, QuestionsListener, TlsFiles, serve};
use aliquot_scheduler::live::DecisionArgs;
use anyhow::{Context, Result, ensure};
use tokio::sync::oneshot;

use crate::commands::live::{block_signals, start_log};

/// The file in which a pod finds the name of its own namespace.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The namespace if this process does not run in a pod.
const NAMESPACE: &str = "aliquot-system";

#[derive(clap::Args)]
pub(crate) struct KubernetesArgs {
    /// Kubeconfig file that names the API server [default: the cluster of this pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Schedule the pods with this schedulerName
    #[arg(long, value_name = "NAME", default_value = "aliquot")]
    scheduler_name: String,
    /// Names of schedulers that are gone, for example kai-scheduler. In namespaces with the label
    /// aliquot.dev/scheduler=aliquot the webhook gives their pods to this scheduler
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', requires = "webhook_address")]
    stands_in_for: Vec<String>,
    /// Namespace of the managers, of the Lease by which replicas elect a leader, and of the Secrets with certificates
    /// [default: the pod's own, or aliquot-system]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    decisions: DecisionArgs,
    /// Node labels that describe the topology, the outermost first, for example
    /// topology.kubernetes.io/zone,example.com/rack. A gang can be required to stay within one value of a label
    #[arg(long, value_name = "LABEL,LABEL", value_delimiter = ',', default_value = "kubernetes.io/hostname")]
    topology: Vec<String>,
    /// Address on which to serve /metrics, /healthz and /readyz [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_address: Option<SocketAddr>,
    /// Address on which to answer `kubectl aliquot`. It must be a loopback address, because callers are not
    /// authenticated [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    questions_address: Option<SocketAddr>,
    /// Address on which to serve the admission webhook, over TLS with a certificate that the replicas make themselves.
    /// The API server reaches it by the Service aliquot-scheduler-webhook [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    webhook_address: Option<SocketAddr>,
    /// Address on which to take the managers' reports about the use of slices and the health of devices, over TLS with
    /// certificates that the replicas make themselves. Managers reach it by the Service aliquot-scheduler-reports
    /// [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    reports_address: Option<SocketAddr>,
    #[command(flatten)]
    extender: ExtenderArgs,
    /// Log level or filter, in the syntax of RUST_LOG
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log_level: String,
}

// For kube-scheduler, which keeps its pods and asks about devices.
#[derive(clap::Args)]
struct ExtenderArgs {
    /// Address on which to serve kube-scheduler's extender protocol. Every accepted caller can bind pods, so without
    /// --extender-client-authority it must be a loopback address [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    extender_address: Option<SocketAddr>,
    /// PEM file with the certificate of the extender
    #[arg(long, value_name = "FILE", requires_all = ["extender_address", "extender_key"])]
    extender_certificate: Option<PathBuf>,
    /// PEM file with the key of this certificate
    #[arg(long, value_name = "FILE", requires = "extender_certificate")]
    extender_key: Option<PathBuf>,
    /// PEM file with the authority of the clients' certificates [default: clients need none]
    #[arg(long, value_name = "FILE", requires = "extender_certificate")]
    extender_client_authority: Option<PathBuf>,
    /// URL by which kube-scheduler reaches the extender of this replica, as in https://10.0.0.7:9408. The other
    /// replicas redirect kube-scheduler there while this replica leads
    #[arg(long, value_name = "URL", requires = "extender_address", value_parser = url)]
    extender_url: Option<String>,
}

impl ExtenderArgs {
    fn listen(&self) -> Result<Option<ExtenderListener>> {
        let Some(address) = self.extender_address else { return Ok(None) };
        ensure!(
            self.extender_client_authority.is_some() || address.ip().is_loopback(),
            "--extender-address is {address}, but without --extender-client-authority every caller can bind pods; give \
             the authority of kube-scheduler's certificate, or a loopback address, such as 127.0.0.1:9408"
        );
        let files = self.extender_certificate.clone().zip(self.extender_key.clone());
        let tls = files.map(|(certificate, key)| {
            let client_authority = self.extender_client_authority.clone();
            TlsFiles { certificate, key, client_authority }
        });
        Ok(Some(ExtenderListener { listener: listen(address)?, tls }))
    }
}

/// A URL without a path.
fn url(text: &str) -> Result<String, String> {
    let after = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = after.ok_or("it must begin with http:// or https://")?.trim_end_matches('/');
    match host.is_empty() || host.contains(['/', '?', '#', ' ']) {
        true => Err("it must be an address with a port and no path, as in https://10.0.0.7:9408".to_owned()),
        false => Ok(text.trim_end_matches('/').to_owned()),
    }
}

/// Schedules until SIGTERM or SIGINT.
pub(crate) fn kubernetes(args: &KubernetesArgs) -> Result<()> {
    start_log("--log-level", &args.log_level)?;
    let signals = block_signals()?;
    let (ask, asked) = oneshot::channel();
    thread::spawn(move || {
        if signals.wait().is_ok() {
            _ = ask.send(());
        }
    });
    let own = || std::fs::read_to_string(Path::new(OWN_NAMESPACE)).ok().map(|name| name.trim().to_owned());
    let config = Config {
        kubeconfig: args.kubeconfig.clone(),
        name: args.scheduler_name.clone(),
        stands_in_for: args.stands_in_for.clone(),
        namespace: args.namespace.clone().or_else(own).unwrap_or_else(|| NAMESPACE.to_owned()),
        identity: identity()?,
        topology: args.topology.clone(),
        extender_url: args.extender.extender_url.clone(),
    };
    let listeners = Listeners {
        metrics: args.metrics_address.map(listen).transpose()?,
        questions: args.questions_address.map(|address| for_questions(address, &args.decisions)).transpose()?,
        extender: args.extender.listen()?,
        webhook: args.webhook_address.map(listen).transpose()?,
        reports: args.reports_address.map(listen).transpose()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let served = runtime.block_on(serve(config, listeners, args.decisions.decisions(), asked));
    // The error's text contains its causes already.
    served.map_err(|error| anyhow::Error::msg(error.to_string()))
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
}

fn for_questions(address: SocketAddr, decisions: &DecisionArgs) -> Result<QuestionsListener> {
    ensure!(
        address.ip().is_loopback(),
        "--questions-address is {address}, but callers are not authenticated; give a loopback address, such as 127.0.0.1:9407"
    );
    Ok(QuestionsListener { listener: listen(address)?, snapshots: decisions.snapshots() })
}

/// A name for this process: the machine's name, with a part that differs from process to process.
fn identity() -> Result<String> {
    let name = nix::unistd::gethostname().context("this machine has no name")?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{}_{}_{:x}", name.to_string_lossy(), std::process::id(), since.as_nanos()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        extender: ExtenderArgs,
    }

    #[test]
    fn who_may_bind_pods_is_known() {
        let listens = |arguments: &[&str]| {
            let all = ["program"].iter().chain(arguments);
            Arguments::try_parse_from(all).unwrap().extender.listen().map(|listener| listener.is_some())
        };
        let certificate = ["--extender-certificate=tls.crt", "--extender-key=tls.key"];
        let everywhere = "--extender-address=0.0.0.0:0";
        assert!(listens(&[]).is_ok_and(|listens| !listens));
        assert!(listens(&["--extender-address=127.0.0.1:0"]).unwrap());
        assert!(listens(&["--extender-address=[::1]:0"]).is_ok());
        let refused = listens(&[everywhere]).unwrap_err().to_string();
        assert!(refused.contains("every caller can bind pods"), "{refused}");
        assert!(listens(&[&[everywhere], &certificate[..]].concat()).is_err(), "who asks is not known");
        let authority = ["--extender-client-authority=ca.crt"];
        assert!(listens(&[&[everywhere], &certificate[..], &authority].concat()).unwrap());
    }
}
