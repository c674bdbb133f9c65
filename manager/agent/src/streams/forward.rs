//! A connection between a user and a port of a job.

use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::{End, FromUser, Refused, from_user};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Streaming;

use super::{Instance, READ_BYTES, ToUser, ask_aside, next, refused, send};
use crate::supervise::requests::Request;

/// Connects to a port of an instance.
pub(super) async fn connect(instance: &Instance, port: u32) -> Result<TcpStream, Refused> {
    let number = u16::try_from(port).ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| refused(format!("{port} is not a port; ports are 1 to 65535")))?;
    let (_, descriptors) = ask_aside(instance, Request::Connect(number), Vec::new()).await?;
    let connection = descriptors.into_iter().next().ok_or_else(|| refused("its first process sends no connection"))?;
    let connection = std::net::TcpStream::from(connection);
    let connection = connection.set_nonblocking(true).and_then(|()| TcpStream::from_std(connection));
    connection
        .and_then(|connection| connection.set_nodelay(true).map(|()| connection))
        .map_err(|error| refused(error.to_string()))
}

/// Carries data until both sides have ended, or one has broken.
pub(super) async fn run(mut connection: TcpStream, from_user: &mut Streaming<FromUser>, to_user: &ToUser) {
    let is_whole = {
        let (mut reader, mut writer) = connection.split();
        let incoming = async {
            loop {
                match next(from_user).await?.frame {
                    Some(from_user::Frame::Data(data)) => writer.write_all(&data).await.ok()?,
                    Some(from_user::Frame::End(_)) => return writer.shutdown().await.ok(),
                    Some(from_user::Frame::Resize(_) | from_user::Frame::Open(_)) | None => {}
                }
            }
        };
        let outgoing = async {
            let mut bytes = vec![0; READ_BYTES];
            loop {
                match reader.read(&mut bytes).await.ok()? {
                    0 => return send(to_user, Frame::End(End {})).await,
                    count => send(to_user, Frame::Data(bytes[..count].to_vec())).await?,
                }
            }
        };
        let both = async {
            tokio::pin!(incoming, outgoing);
            // A broken side ends the other one.
            tokio::select! {
                done = &mut incoming => done.is_some() && outgoing.await.is_some(),
                done = &mut outgoing => done.is_some() && incoming.await.is_some(),
            }
        };
        tokio::select! {
            is_whole = both => is_whole,
            // After the end of the user's data, only this shows that the user is gone.
            () = to_user.closed() => false,
        }
    };
    if !is_whole {
        // The job must see a broken connection, not an end of the data.
        let _ = connection.set_zero_linger();
    }
}
