//! The environment variables that programs written for other systems read, with the values those systems would set.

use crate::wish::{MILLION, Part, Wish};

/// A part that was given to a container, with its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The device's index on the node, as NVML counts.
    pub device_index: u32,
    /// The memory of the whole device.
    pub device_memory_bytes: u64,
    /// The container's part of it.
    pub part: Part,
}

/// An environment variable whose value may depend on the container's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The same on every device.
    Text(String),
    /// The indexes of the devices, separated by commas.
    DeviceIndexes,
    /// The memory of the whole first device, in this unit.
    DeviceMemory { unit_bytes: u64 },
    /// The container's share of the first device's memory, for example 0.25.
    MemoryPortion,
    /// One variable for each device, `NAME_0` and so on: the container's memory there in MiB, followed by `m`.
    EachMemoryMib,
}

impl Variable {
    pub(crate) fn text(name: &'static str, value: impl ToString) -> Variable {
        Variable { name, value: Value::Text(value.to_string()) }
    }

    pub(crate) fn new(name: &'static str, value: Value) -> Variable {
        Variable { name, value }
    }
}

impl Wish {
    /// The variables to set in a container that was given these parts. `placed` is in the order of its devices.
    #[must_use]
    pub fn environment(&self, placed: &[Placed]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for Variable { name, value } in &self.variables {
            let first = placed.first();
            let text = match value {
                Value::Text(text) => Some(text.clone()),
                Value::DeviceIndexes => {
                    let indexes: Vec<String> = placed.iter().map(|part| part.device_index.to_string()).collect();
                    Some(indexes.join(","))
                }
                Value::DeviceMemory { unit_bytes } => {
                    first.map(|placed| (placed.device_memory_bytes / unit_bytes.max(&1)).to_string())
                }
                Value::MemoryPortion => first.map(portion),
                Value::EachMemoryMib => {
                    let each = placed.iter().enumerate();
                    found.extend(each.map(|(number, placed)| {
                        (format!("{name}_{number}"), format!("{}m", placed.part.memory_bytes >> 20))
                    }));
                    None
                }
            };
            found.extend(text.map(|text| ((*name).to_owned(), text)));
        }
        found
    }
}

/// The part's share of the device's memory, rounded down to a millionth, without trailing zeros.
fn portion(placed: &Placed) -> String {
    let (part, whole) = (u128::from(placed.part.memory_bytes), u128::from(placed.device_memory_bytes.max(1)));
    let millionths = (part * u128::from(MILLION) / whole).min(u128::from(MILLION));
    if millionths == u128::from(MILLION) {
        return "1".to_owned();
    }
    let text = format!("0.{millionths:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_written_as_short_as_they_can_be() {
        for (part, whole, text) in
            [(1, 4, "0.25"), (4, 4, "1"), (5, 4, "1"), (0, 4, "0"), (1, 3, "0.333333"), (1, 0, "1"), (1, u64::MAX, "0")]
        {
            let part = Part { core_request_percent: 1, core_limit_percent: 1, memory_bytes: part };
            assert_eq!(portion(&Placed { device_index: 0, device_memory_bytes: whole, part }), text);
        }
    }
}
