//! Calls about secrets. None of them answers a value.

use aliquot_proto::scheduler::v1 as wire;
use tonic::{Request, Status};

use super::{UserService, about, caller, check, note};
use crate::access::{Action, Caller};
use crate::secrets::{Holder, Listed};

/// The holder in a call about secrets: the queue if the call names one, else the caller.
fn holder(service: &UserService, caller: &Caller, queue: &str) -> Result<Holder, Status> {
    if !queue.is_empty() {
        return match service.seen.queues.read().has(queue) {
            true => Ok(Holder::Queue(queue.to_owned())),
            false => Err(Status::not_found(format!("there is no queue {queue:?}; see: aliquot queues"))),
        };
    }
    Holder::user(&caller.identity).ok_or_else(|| Status::permission_denied("a node has no secrets"))
}

/// Sets a secret of the caller or of a queue.
pub(super) fn set(service: &UserService, request: Request<wire::SetSecretRequest>) -> Result<wire::Secret, Status> {
    note(&request, || about::secret(&request.get_ref().name, &request.get_ref().queue));
    let caller = caller(&request)?;
    let holder = holder(service, &caller, &request.get_ref().queue)?;
    check(&request, &Action::ChangeSecret { holder: &holder })?;
    let wire::SetSecretRequest { name, value, .. } = request.into_inner();
    let now_ms = service.clock.now_ms();
    // This waits for the disk, rarely and shortly.
    let kept = tokio::task::block_in_place(|| service.secrets.set(now_ms, holder, &name, &value, &caller.name));
    kept.map_err(Status::from)
}

/// The secrets that the caller can name in jobs. Administrators and viewers see all secrets.
pub(super) async fn list(
    service: &UserService,
    request: &Request<wire::ListSecretsRequest>,
) -> Result<wire::ListSecretsResponse, Status> {
    check(request, &Action::Look)?;
    let caller = caller(request)?;
    let listed = seen(service, &caller);
    let mut secrets = Vec::with_capacity(listed.len());
    for Listed { mut secret, local_user } in listed {
        if let Some(uid) = local_user {
            secret.user = service.registrar.callers.users.name_of(uid).await;
        }
        secrets.push(secret);
    }
    Ok(wire::ListSecretsResponse { secrets })
}

fn seen(service: &UserService, caller: &Caller) -> Vec<Listed> {
    let queues = service.seen.queues.read();
    service.secrets.list(|holder| {
        let around = match holder {
            Holder::Queue(queue) => queues.around(queue),
            Holder::Local(_) | Holder::Remote(_) => Vec::new(),
        };
        caller.may(&Action::SeeSecret { holder, queues: &around }).is_ok()
    })
}

/// Removes a secret of the caller or of a queue.
pub(super) fn remove(
    service: &UserService,
    request: Request<wire::RemoveSecretRequest>,
) -> Result<wire::RemoveSecretResponse, Status> {
    note(&request, || about::secret(&request.get_ref().name, &request.get_ref().queue));
    let caller = caller(&request)?;
    let holder = holder(service, &caller, &request.get_ref().queue)?;
    check(&request, &Action::ChangeSecret { holder: &holder })?;
    let name = request.into_inner().name;
    tokio::task::block_in_place(|| service.secrets.remove(holder, &name, &caller.name))?;
    Ok(wire::RemoveSecretResponse {})
}
