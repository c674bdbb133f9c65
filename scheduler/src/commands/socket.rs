//! Reaches a running scheduler by its socket for users.

use std::path::Path;

use aliquot_proto::scheduler::v1::scheduler_client::SchedulerClient;
use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};

/// A client of the scheduler with this socket.
pub(crate) async fn client(socket: &Path) -> Result<SchedulerClient<Channel>> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is only sent as the authority; the connector decides where the connection goes.
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    let channel = channel.with_context(|| format!("cannot reach the scheduler on {}", socket.display()))?;
    Ok(SchedulerClient::new(channel))
}
