//! What HAMi and Volcano have in common: so many devices, and so much of each.

use crate::constraints::Decided;
use crate::environment::{Value, Variable};
use crate::refusal::Refusal;
use crate::request::{MIB, Request};
use crate::wish::{Core, MILLION, Memory, Share};

/// How a system calls it.
pub(super) struct Names {
    /// MiB of each device.
    pub(super) memory: &'static str,
    /// Percent of each device's memory.
    pub(super) memory_percentage: &'static str,
    /// Percent of each device's time.
    pub(super) cores: &'static str,
}

/// What is asked for of each device. Time that is not named is not limited, and guaranteed in proportion to memory;
/// memory that is not named is all of it.
pub(super) fn share(request: &Request<'_>, names: &Names) -> Result<Share, Refusal> {
    let cores = request.amount_within(names.cores, 1..=100)?;
    let percentage = request.amount_within(names.memory_percentage, 1..=100)?;
    let memory = match (request.memory(names.memory, MIB)?, percentage) {
        (Some(_), Some(_)) => {
            let advice = "say it in MiB or in percent";
            return Err(Refusal::Together {
                first: names.memory.into(),
                second: names.memory_percentage.into(),
                advice,
            });
        }
        (memory, percentage) => memory.or(percentage.map(|percent| Memory::PartsPerMillion(percent * (MILLION / 100)))),
    };
    Ok(match (cores, memory) {
        (None, None) => Share::Whole,
        (Some(percent), memory) => Share::Both { core: Core::exactly(percent), memory: memory.unwrap_or(Memory::ALL) },
        (None, Some(memory)) => Share::ByMemory { memory, core_limit_percent: Some(100) },
    })
}

/// The devices that an annotation gives to this container: `UUID,type,memory,cores` with a colon behind each device and
/// a semicolon behind each container. `None` if it says nothing of this container.
pub(super) fn decided(request: &Request<'_>, key: &str) -> Result<Option<Decided>, Refusal> {
    let Some(text) = request.annotation(key) else { return Ok(None) };
    let of_container = text.split(';').nth(request.index).unwrap_or_default();
    let devices = of_container.split(':').map(str::trim).filter(|device| !device.is_empty());
    let uuids: Option<Vec<String>> = devices
        .map(|device| {
            let (uuid, rest) = device.split_once(',')?;
            (!uuid.is_empty() && rest.split(',').count() == 3).then(|| uuid.to_owned())
        })
        .collect();
    match uuids {
        Some(uuids) if uuids.is_empty() => Ok(None),
        Some(uuids) => Ok(Some(Decided::Uuids(uuids))),
        None => Err(Refusal::value(key, text, "UUID,type,memory,cores of each device, as its scheduler writes it")),
    }
}

/// The limits, in the variables that tell them to programs.
pub(super) fn limit_variables(request: &Request<'_>, names: &Names) -> Result<Vec<Variable>, Refusal> {
    // 0 is how they write that time is not limited.
    let cores = request.amount(names.cores)?.unwrap_or(0);
    Ok(vec![
        Variable::new("CUDA_DEVICE_MEMORY_LIMIT", Value::EachMemoryMib),
        Variable::text("CUDA_DEVICE_SM_LIMIT", cores),
    ])
}
