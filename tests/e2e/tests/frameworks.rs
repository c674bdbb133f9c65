//! How far PyTorch and Triton come on the simulated GPU, which refuses NVIDIA's runtime library: what the table in
//! `tests/fake-gpu/README.md` says. A new version of theirs can change that.

use std::process::Command;

use aliquot_harness::{GIB, PythonEnvironment, Region, SimulatedGpu, run};

const PYTORCH: &str = include_str!("frameworks/pytorch.py");
/// Triton wants a kernel's source in a file.
const TRITON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/frameworks/triton_kernel.py");

/// The steps, and how the answer to each begins.
const STEPS: [(&str, &str); 7] = [
    ("device_count", "1"),
    ("utilization(0)", "0"),
    ("is_available", "False"),
    ("init", "RuntimeError: Unexpected error from cudaGetDeviceCount()"),
    ("zeros", "RuntimeError: Unexpected error from cudaGetDeviceCount()"),
    ("mem_get_info", "RuntimeError: Unexpected error from cudaGetDeviceCount()"),
    ("pin_memory", "RuntimeError: Unexpected error from cudaGetDeviceCount()"),
];

#[test]
#[ignore = "downloads PyTorch for CUDA, 3 GB, and unpacks it to 7"]
fn pytorch_and_triton_come_as_far_as_the_table_says() {
    let (gpu, python) = (SimulatedGpu::new(), PythonEnvironment::pytorch());
    let region = Region::new(&gpu, GIB);
    let cache = tempfile::tempdir().unwrap();
    let triton = || {
        let mut command = Command::new(python.interpreter());
        command.arg(TRITON).env("TRITON_CACHE_DIR", cache.path());
        gpu.show_to(&mut command);
        command
    };
    for is_limited in [false, true] {
        println!("{}", if is_limited { "in a slice" } else { "without a slice" });
        let said = |mut command: Command| {
            let command = if is_limited { region.preload_into(&mut command) } else { &mut command };
            run(command).success().stdout
        };
        let pytorch = said(python.program(&gpu, PYTORCH));
        println!("{pytorch}");
        for (step, begins) in STEPS {
            let answer = pytorch.lines().find_map(|line| line.strip_prefix(step)?.strip_prefix(": "));
            assert!(answer.is_some_and(|answer| answer.starts_with(begins)), "{step}: {answer:?}");
        }
        // What every context ends in: error 500, `cudaErrorSymbolNotFound`.
        assert_eq!(pytorch.matches("Error 500").count(), 4, "{pytorch}");
        let mut by_nvml = python.program(&gpu, "import torch; print(torch.cuda.is_available())");
        by_nvml.env("PYTORCH_NVML_BASED_CUDA_CHECK", "1");
        assert_eq!(said(by_nvml), "True\n");
        let kernel = said(triton());
        println!("{kernel}");
        assert!(kernel.contains("add has run"), "{kernel}");
    }
}
