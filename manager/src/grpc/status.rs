//! The gRPC code of each error, chosen here by its type.

use tonic::{Code, Status};

use crate::cdi::CdiError;
use crate::manager::{CreateSliceError, RemoveSliceError, ResizeSliceError, StepError};
use crate::region::admission::AdmissionError;
use crate::region::files::CreateRegionError;
use crate::slices::{CreateError, PartError, RemoveError, ResizeError};

/// An error that the caller cannot correct.
pub(super) fn internal(error: impl ToString) -> Status {
    Status::internal(error.to_string())
}

pub(super) fn no_such_slice(name: &str) -> Status {
    let error = RemoveError::NotFound { name: name.into() };
    Status::new(remove(&error), error.to_string())
}

impl From<CreateSliceError> for Status {
    fn from(error: CreateSliceError) -> Status {
        let code = match &error {
            CreateSliceError::Refused(error) => create(error),
            CreateSliceError::Failed(error) => step(error),
        };
        Status::new(code, error.to_string())
    }
}

impl From<ResizeSliceError> for Status {
    fn from(error: ResizeSliceError) -> Status {
        let code = match &error {
            ResizeSliceError::Refused(error) => resize(error),
            ResizeSliceError::Damaged { .. } => Code::FailedPrecondition,
            ResizeSliceError::Failed(error) => step(error),
        };
        Status::new(code, error.to_string())
    }
}

impl From<RemoveSliceError> for Status {
    fn from(error: RemoveSliceError) -> Status {
        let code = match &error {
            RemoveSliceError::Refused(error) => remove(error),
            RemoveSliceError::Failed(error) => step(error),
        };
        Status::new(code, error.to_string())
    }
}

fn step(error: &StepError) -> Code {
    match error {
        StepError::Mps(_)
        | StepError::Cdi(CdiError::NoDeviceNode(_))
        | StepError::Region(CreateRegionError::Admission(AdmissionError::Unsupported { .. })) => {
            Code::FailedPrecondition
        }
        StepError::Descriptors(_) => Code::ResourceExhausted,
        // The owner has ended before its slice was made.
        StepError::Attach(source) if source.kind() == std::io::ErrorKind::NotFound => Code::FailedPrecondition,
        _ => Code::Internal,
    }
}

fn create(error: &CreateError) -> Code {
    match error {
        CreateError::Name(_)
        | CreateError::Description { .. }
        | CreateError::Variable(_)
        | CreateError::HostMemory(_)
        | CreateError::PartCount { .. }
        | CreateError::DeviceTwice { .. } => Code::InvalidArgument,
        CreateError::Exists { .. } => Code::AlreadyExists,
        CreateError::Part(error) => part(error),
        CreateError::NoDevice | CreateError::SharedOtherwise { .. } => Code::FailedPrecondition,
        CreateError::TooFewDevices { .. } => Code::ResourceExhausted,
        // If at least one device only lacks room, waiting can help: then its error decides.
        CreateError::NoRoom { refusals } => match refusals.iter().find(|error| error.is_want_of_room()) {
            Some(error) => part(error),
            None => refusals.first().map_or(Code::ResourceExhausted, part),
        },
    }
}

fn resize(error: &ResizeError) -> Code {
    match error {
        ResizeError::NotFound { .. } | ResizeError::NotItsDevice { .. } => Code::NotFound,
        ResizeError::NoChange { .. } | ResizeError::HostMemory(_) => Code::InvalidArgument,
        ResizeError::Part(error) => part(error),
    }
}

fn remove(error: &RemoveError) -> Code {
    match error {
        RemoveError::NotFound { .. } => Code::NotFound,
        RemoveError::InUse { .. } => Code::FailedPrecondition,
    }
}

fn part(error: &PartError) -> Code {
    match error {
        PartError::CoreRequest { .. }
        | PartError::CoreLimit { .. }
        | PartError::LimitBelowRequest { .. }
        | PartError::MemoryMax { .. } => Code::InvalidArgument,
        PartError::Unknown { .. } => Code::NotFound,
        PartError::Unhealthy { .. } | PartError::Partitioned { .. } | PartError::Unnameable { .. } => {
            Code::FailedPrecondition
        }
        PartError::CoreRoom { .. } | PartError::MemoryRoom { .. } => Code::ResourceExhausted,
    }
}
