//! The request of a job, written for people.

use aliquot_proto::scheduler::v1::JobSpec;

use super::counted;
use crate::quantity::{bytes_exact, bytes_human, thousandths_human};

/// The devices in short, for a table: `30 %`, `2 × 30 %`, and for a gang `4 × 2 × 30 %`.
pub(crate) fn devices_short(spec: &JobSpec) -> String {
    let each = match (spec.gpu_core_percent, spec.gpu_memory_bytes, spec.gpus) {
        (0, 0, 0) => return "-".to_owned(),
        (0, 0, _) => "100 %".to_owned(),
        (0, bytes, _) => bytes_human(bytes),
        (percent, ..) => format!("{percent} %"),
    };
    let factors = [spec.gang, spec.gpus].into_iter().filter(|&factor| factor > 1);
    factors.map(|factor| format!("{factor} × ")).collect::<String>() + &each
}

/// Everything that a member gets.
pub(crate) fn of_member(spec: &JobSpec) -> String {
    let mut wants = Vec::new();
    let share = share(spec);
    let memory = (spec.gpu_memory_bytes > 0).then(|| bytes_exact(spec.gpu_memory_bytes));
    match (share, memory) {
        (None, None) if spec.gpus == 0 => {}
        (share, memory) => {
            let parts: Vec<String> = [share, memory].into_iter().flatten().collect();
            let gpus = counted(spec.gpus.max(1) as usize, "GPU");
            wants.push(if parts.is_empty() { gpus } else { format!("{} of {gpus}", parts.join(" and ")) });
        }
    }
    if spec.cpu_millis > 0 {
        wants.push(format!("{} CPU", thousandths_human(spec.cpu_millis)));
    }
    if spec.memory_bytes > 0 {
        wants.push(format!("{} of host memory", bytes_exact(spec.memory_bytes)));
    }
    if wants.is_empty() { "no devices".to_owned() } else { wants.join(", ") }
}

/// The guaranteed and the greatest share of a device's time; `None`: none is named.
fn share(spec: &JobSpec) -> Option<String> {
    let limit = spec.gpu_core_limit_percent;
    let request = match (spec.gpu_core_percent, spec.gpu_memory_bytes) {
        (0, 0) => return None,
        (0, _) if limit == 0 => return None,
        // With memory alone comes the smallest share.
        (0, _) => 1,
        (percent, _) => percent,
    };
    Some(if limit > request { format!("{request} to {limit} %") } else { format!("{request} %") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_every_kind_of_job() {
        let spec = |gpu_core_percent, gpu_memory_bytes, gpus, gang| JobSpec {
            gpu_core_percent,
            gpu_memory_bytes,
            gpus,
            gang,
            ..JobSpec::default()
        };
        for (spec, short, long) in [
            (spec(0, 0, 0, 0), "-", "no devices"),
            (spec(30, 0, 0, 0), "30 %", "30 % of 1 GPU"),
            (spec(30, 8 << 30, 2, 4), "4 × 2 × 30 %", "30 % and 8 GiB of 2 GPUs"),
            (spec(0, 8 << 30, 1, 1), "8 GiB", "8 GiB of 1 GPU"),
            (spec(0, 0, 2, 0), "2 × 100 %", "2 GPUs"),
        ] {
            assert_eq!((devices_short(&spec).as_str(), of_member(&spec).as_str()), (short, long));
        }
        let more = JobSpec { cpu_millis: 1500, memory_bytes: 1 << 30, ..spec(30, 0, 0, 0) };
        assert_eq!(of_member(&more), "30 % of 1 GPU, 1.5 CPU, 1 GiB of host memory");
        for (core, memory, gpus, limit, long) in [
            (30, 0, 0, 60, "30 to 60 % of 1 GPU"),
            (30, 0, 0, 30, "30 % of 1 GPU"),
            (0, 8 << 30, 0, 100, "1 to 100 % and 8 GiB of 1 GPU"),
            (0, 0, 2, 100, "2 GPUs"),
        ] {
            let limited = JobSpec { gpu_core_limit_percent: limit, ..spec(core, memory, gpus, 0) };
            assert_eq!(of_member(&limited), long);
        }
    }
}
