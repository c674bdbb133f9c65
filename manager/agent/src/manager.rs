//! The node manager of this machine, over its socket.

use std::path::Path;
use std::time::Duration;

use aliquot_proto::agent::v1::{self as job, DevicePart, Process, Start};
use aliquot_proto::node::v1::node_manager_client::NodeManagerClient;
use aliquot_proto::node::v1::{
    CreateSliceRequest, DESCRIPTION_BYTES_MAX, GetNodeRequest, Node, Part, PriorityClass, RemoveSliceRequest, Slice,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::instance::Number;

/// The manager removes a slice only when the driver has freed the memory of its processes, within 25 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(40);
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A client of the manager. The connection is made when it is used, and made again if the manager was gone.
#[derive(Clone)]
pub(crate) struct Manager(NodeManagerClient<Channel>);

impl Manager {
    /// The manager that serves `socket`.
    pub(crate) fn new(socket: &Path) -> Manager {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is only sent as the authority; the connector decides where the connection goes.
        let channel =
            Endpoint::from_static("http://localhost").timeout(CALL_TIMEOUT).connect_with_connector_lazy(connector);
        Manager(NodeManagerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    /// The devices, and the slices of them.
    pub(crate) async fn node(&mut self) -> Result<Node, Status> {
        Ok(self.0.get_node(GetNodeRequest {}).await?.into_inner())
    }

    /// Makes a slice, and returns it as the manager describes it.
    pub(crate) async fn create(&mut self, request: CreateSliceRequest) -> Result<Slice, Status> {
        Ok(self.0.create_slice(Request::new(request)).await?.into_inner())
    }

    /// Removes a slice, if it exists. The manager also removes it when the slice's owner has ended, but later.
    pub(crate) async fn remove(&mut self, name: String) -> Result<(), Status> {
        match self.0.remove_slice(RemoveSliceRequest { name, force: true }).await {
            Err(status) if status.code() != Code::NotFound => Err(status),
            _ => Ok(()),
        }
    }
}

/// The name of an instance's slice.
pub(crate) fn slice_name((term, number): Number) -> String {
    format!("job-{term}-{number}")
}

/// The request for the slice of `start`, for its user and tied to the process `owner_pid`.
///
/// # Errors
/// The error says which amount no slice can have.
pub(crate) fn slice_request(start: &Start, number: Number, owner_pid: u32) -> Result<CreateSliceRequest, String> {
    let process = start.process.clone().unwrap_or_default();
    let amounts = start.amounts.clone().unwrap_or_default();
    let mut description = format!("{}: {}", start.claim, process.description);
    let end = (0..=description.len().min(DESCRIPTION_BYTES_MAX)).rev().find(|end| description.is_char_boundary(*end));
    description.truncate(end.unwrap_or(0));
    Ok(CreateSliceRequest {
        name: slice_name(number),
        parts: amounts.devices.iter().map(|given| part(given, process.core_limit_percent)).collect::<Result<_, _>>()?,
        description,
        owner_pid,
        priority_class: priority_class(&process).into(),
        allowed_uids: vec![process.uid],
        ..CreateSliceRequest::default()
    })
}

/// The class of the job's slice. A class of a later version is the node's default.
fn priority_class(process: &Process) -> PriorityClass {
    match process.priority_class() {
        job::PriorityClass::Unspecified => PriorityClass::Unspecified,
        job::PriorityClass::LatencyCritical => PriorityClass::LatencyCritical,
        job::PriorityClass::Standard => PriorityClass::Standard,
        job::PriorityClass::Batch => PriorityClass::Batch,
    }
}

/// The part that the scheduler has given, exactly, with the job's limit; 0: no more than was given.
fn part(given: &DevicePart, limit_percent: u32) -> Result<Part, String> {
    if !given.core_millis.is_multiple_of(10) || !(10..=1000).contains(&given.core_millis) || given.memory_bytes == 0 {
        return Err(format!(
            "a slice has whole percents of a device's time and some of its memory, not {} thousandths and {} bytes of {}",
            given.core_millis, given.memory_bytes, given.uuid
        ));
    }
    let percent = given.core_millis / 10;
    Ok(Part {
        device_uuid: given.uuid.clone(),
        core_request_percent: percent,
        core_limit_percent: if limit_percent == 0 { percent } else { limit_percent },
        memory_limit_bytes: given.memory_bytes,
    })
}

#[cfg(test)]
mod tests {
    use aliquot_proto::agent::v1::Amounts;

    use super::*;

    fn start(core_millis: u32, memory_bytes: u64) -> Start {
        let devices = vec![DevicePart { uuid: "GPU-1".into(), core_millis, memory_bytes }];
        Start {
            claim: "17.0.0.1".into(),
            amounts: Some(Amounts { devices, ..Amounts::default() }),
            process: Some(Process { uid: 7, description: "ä".repeat(2000), ..Process::default() }),
            ..Start::default()
        }
    }

    #[test]
    fn a_slice_has_exactly_what_was_given() {
        let request = slice_request(&start(300, 5), (2, 3), 99).unwrap();
        let part = &request.parts[0];
        assert_eq!((part.core_request_percent, part.core_limit_percent, part.memory_limit_bytes), (30, 30, 5));
        assert_eq!((request.name.as_str(), request.owner_pid, request.allowed_uids), ("job-2-3", 99, vec![7]));
        assert!(request.description.len() <= DESCRIPTION_BYTES_MAX && request.description.starts_with("17.0.0.1: ä"));
    }

    #[test]
    fn a_slice_has_the_limit_and_the_class_of_the_job() {
        let mut start = start(300, 5);
        let process = start.process.as_mut().unwrap();
        (process.core_limit_percent, process.priority_class) = (60, job::PriorityClass::LatencyCritical.into());
        let request = slice_request(&start, (2, 3), 99).unwrap();
        assert_eq!((request.parts[0].core_request_percent, request.parts[0].core_limit_percent), (30, 60));
        assert_eq!(request.priority_class(), PriorityClass::LatencyCritical);
        start.process.as_mut().unwrap().priority_class = 9;
        let request = slice_request(&start, (2, 3), 99).unwrap();
        assert_eq!(request.priority_class(), PriorityClass::Unspecified);
    }

    #[test]
    fn amounts_that_no_slice_has_are_refused() {
        for (core_millis, memory_bytes) in [(0, 5), (305, 5), (1010, 5), (300, 0)] {
            assert!(slice_request(&start(core_millis, memory_bytes), (2, 3), 99).is_err());
        }
    }
}
