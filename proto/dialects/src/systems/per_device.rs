//! The common part of HAMi and Volcano: a number of devices, and a request that holds for each of them.

use crate::constraints::Decided;
use crate::dialect::{Count, Counted};
use crate::environment::{Value, Variable};
use crate::refusal::Refusal;
use crate::request::{MIB, Request};
use crate::wish::{Core, MILLION, Memory, Share};

/// The names of the resources in one system.
pub(super) struct Names {
    /// MiB of each device's memory.
    pub(super) memory: &'static str,
    /// Percent of each device's memory.
    pub(super) memory_percentage: &'static str,
    /// Percent of each device's time.
    pub(super) cores: &'static str,
}

/// The resources that must be in a node's status for kube-scheduler: the sums over its devices.
pub(super) fn counted(names: &Names) -> Vec<Counted> {
    vec![
        Counted { resource: names.memory, count: Count::MemoryMib },
        Counted { resource: names.memory_percentage, count: Count::MemoryPercent },
        Counted { resource: names.cores, count: Count::CorePercent },
    ]
}

/// The request for each device. If only memory is requested, time is not limited, and guaranteed in proportion to the
/// memory. If only time is requested, the part has all of the memory. Both systems write unlimited time also as 0.
pub(super) fn share(request: &Request<'_>, names: &Names) -> Result<Share, Refusal> {
    let cores = match request.number(names.cores)? {
        Some(0) => None,
        _ => request.amount_within(names.cores, 1..=100)?,
    };
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

/// The devices that an annotation gives to this container: `UUID,type,memory,cores`, with a colon after each device and
/// a semicolon after each container. `None` if it gives this container none.
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

/// The variables that tell the limits to programs.
pub(super) fn limit_variables(request: &Request<'_>, names: &Names) -> Result<Vec<Variable>, Refusal> {
    let cores = request.number(names.cores)?.unwrap_or(0);
    Ok(vec![
        Variable::new("CUDA_DEVICE_MEMORY_LIMIT", Value::EachMemoryMib),
        Variable::text("CUDA_DEVICE_SM_LIMIT", cores),
    ])
}
