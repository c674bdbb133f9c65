//! The recovery action that the driver requests for a GPU before anything new is started on it.
//!
//! Such a GPU gets no new slices, whether an error was reported or not: it would fail again, and only the driver knows
//! which errors need a reset or a restart.

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;

use super::NvmlDevice;

/// The requested action in words; `None` if there is none, or if the driver does not say (older drivers, and drivers of
/// GPUs without recovery actions).
pub(super) fn wanted(gpu: &NvmlDevice) -> Option<String> {
    let asked = [FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)];
    let answer = gpu.field_values_for(&asked).ok()?.pop()?.ok()?;
    match answer.value.ok()? {
        SampleValue::U32(action) => in_words(action.into()),
        SampleValue::U64(action) => in_words(action),
        SampleValue::I64(action) => in_words(action.try_into().ok()?),
        SampleValue::F64(_) => None,
    }
}

/// Words for `nvmlDeviceGpuRecoveryAction_t`, after NVIDIA's guide to GPU memory errors.
fn in_words(action: u64) -> Option<String> {
    let words = match action {
        0 => return None,
        1 => "a reset of the GPU (nvidia-smi --gpu-reset)",
        2 => "a restart of the node",
        3 => "an end of the programs that use the GPU together with others",
        4 => "an end of the programs on the GPU, and then a reset of it (nvidia-smi --gpu-reset)",
        5 => "its IMEX domain recovered",
        6 => "a reset of the GPU's PCIe bus",
        7 => "a restart of the system",
        other => return Some(format!("something done with the GPU that is not known here (recovery action {other})")),
    };
    Some(words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn every_recovery_action_but_none_has_a_reason() {
        assert_eq!(in_words(0), None);
        let words: Vec<String> = (1..=8).map(|action| in_words(action).expect("a reason")).collect();
        assert!(words[0].contains("--gpu-reset") && words[1].contains("node") && words[7].contains("action 8"));
    }
}
