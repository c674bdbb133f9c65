//! Types that several records use.

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{Action, Resource};
use aliquot_scheduler_engine::{Generation, Owner};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ActionForm {
    Allocate,
    Consolidate,
    Reclaim,
    Preempt,
    StaleGang,
    Relieve,
}

impl From<Action> for ActionForm {
    fn from(action: Action) -> Self {
        match action {
            Action::Allocate => Self::Allocate,
            Action::Consolidate => Self::Consolidate,
            Action::Reclaim => Self::Reclaim,
            Action::Preempt => Self::Preempt,
            Action::StaleGang => Self::StaleGang,
            Action::Relieve => Self::Relieve,
        }
    }
}

impl From<ActionForm> for Action {
    fn from(form: ActionForm) -> Self {
        match form {
            ActionForm::Allocate => Self::Allocate,
            ActionForm::Consolidate => Self::Consolidate,
            ActionForm::Reclaim => Self::Reclaim,
            ActionForm::Preempt => Self::Preempt,
            ActionForm::StaleGang => Self::StaleGang,
            ActionForm::Relieve => Self::Relieve,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResourceForm {
    Cpu,
    Memory,
    DeviceCore,
    DeviceMemory,
    ModelCore(String),
}

impl From<&Resource> for ResourceForm {
    fn from(resource: &Resource) -> Self {
        match resource {
            Resource::Cpu => Self::Cpu,
            Resource::Memory => Self::Memory,
            Resource::DeviceCore => Self::DeviceCore,
            Resource::DeviceMemory => Self::DeviceMemory,
            Resource::ModelCore(model) => Self::ModelCore(model.clone()),
        }
    }
}

impl From<ResourceForm> for Resource {
    fn from(form: ResourceForm) -> Self {
        match form {
            ResourceForm::Cpu => Self::Cpu,
            ResourceForm::Memory => Self::Memory,
            ResourceForm::DeviceCore => Self::DeviceCore,
            ResourceForm::DeviceMemory => Self::DeviceMemory,
            ResourceForm::ModelCore(model) => Self::ModelCore(model),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OwnerForm {
    Group { namespace: String, name: String },
    Claim(String),
}

impl From<&Owner> for OwnerForm {
    fn from(owner: &Owner) -> Self {
        match owner {
            Owner::Group(namespace, name) => Self::Group { namespace: namespace.clone(), name: name.clone() },
            Owner::Claim(uid) => Self::Claim(uid.as_str().to_owned()),
        }
    }
}

impl From<OwnerForm> for Owner {
    fn from(form: OwnerForm) -> Self {
        match form {
            OwnerForm::Group { namespace, name } => Self::Group(namespace, name),
            OwnerForm::Claim(uid) => Self::Claim(uid.into()),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct GenerationForm {
    term: u64,
    number: u64,
}

impl From<Generation> for GenerationForm {
    fn from(Generation { term, number }: Generation) -> Self {
        Self { term, number }
    }
}

impl From<GenerationForm> for Generation {
    fn from(GenerationForm { term, number }: GenerationForm) -> Self {
        Self { term, number }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct ShareForm {
    queue: String,
    resource: ResourceForm,
    held: u64,
    asked: u64,
    fair_share: u64,
}

impl From<&Share> for ShareForm {
    fn from(share: &Share) -> Self {
        let Share { queue, resource, held, asked, fair_share } = share;
        Self { queue: queue.clone(), resource: resource.into(), held: *held, asked: *asked, fair_share: *fair_share }
    }
}

impl From<ShareForm> for Share {
    fn from(form: ShareForm) -> Self {
        let ShareForm { queue, resource, held, asked, fair_share } = form;
        Self { queue, resource: resource.into(), held, asked, fair_share }
    }
}
