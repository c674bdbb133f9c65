//! The device memory of contexts, and the driver's answer about a destroyed context. On an H100 with driver 580.159.04 a
//! context took 523.6 MiB of the device, and 518.0 MiB were listed for its process.

use std::process::{Command, Stdio};
use std::time::Instant;

use aliquot_abi::cuda::{CUcontext, c_uint};

use crate::cases::Holder;
use crate::cuda::{Cuda, call};
use crate::findings::Findings;
use crate::nvml::Nvml;
use crate::scene::{Scene, answer_name};

const MIB: f64 = (1 << 20) as f64;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => {
            findings.skip("what contexts take", format!("{error:#}"));
            return Ok(());
        }
    };
    let uuid = cuda.uuid()?;
    let own = || nvml.listed_bytes(&uuid, std::process::id());
    let (used, listed) = (nvml.used_bytes(&uuid)?, own()?);
    findings.figure("listed for a process with one context", listed as f64 / MIB, "MiB");
    let (mut second, mut third) = (CUcontext::NULL, CUcontext::NULL);
    let mut before = used;
    for (name, context) in [("a second context", &mut second), ("a third context", &mut third)] {
        let start = Instant::now();
        // SAFETY: the output is a live local.
        unsafe { call!(cuda, cuCtxCreate_v2(context, 0, cuda.device))? };
        findings.figure(format!("making {name}"), start.elapsed().as_secs_f64() * 1e3, "ms");
        let now = nvml.used_bytes(&uuid)?;
        findings.figure(format!("{name}: more of the device in use"), (now.saturating_sub(before)) as f64 / MIB, "MiB");
        before = now;
    }
    findings.figure("listed for a process with three contexts", own()? as f64 / MIB, "MiB");
    // SAFETY: nothing uses the contexts any more.
    unsafe {
        call!(cuda, cuCtxDestroy_v2(third))?;
        call!(cuda, cuCtxDestroy_v2(second))?;
    }
    cuda.bind()?;
    let left = nvml.used_bytes(&uuid)?;
    findings.expect(
        "contexts that are destroyed give back what they took",
        left <= used + (1 << 20),
        format!("{used} bytes before, {left} after"),
    );
    let start = Instant::now();
    let second_process = Holder::start(0, 0)?;
    findings.figure("starting a second process with a context", start.elapsed().as_secs_f64() * 1e3, "ms");
    let more = nvml.used_bytes(&uuid)?.saturating_sub(left);
    findings.figure("the context of a second process: more of the device in use", more as f64 / MIB, "MiB");
    let second_listed = nvml.listed_bytes(&uuid, second_process.pid())?;
    findings.figure("listed for the second process", second_listed as f64 / MIB, "MiB");
    drop(second_process);
    // In a separate process, because some drivers end a program that asks about a destroyed context.
    let stale = Command::new(std::env::current_exe()?)
        .args(["worker", "ask-stale"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&stale.stdout).trim().to_owned();
    findings.answer(
        "cuCtxGetApiVersion of a destroyed context",
        if said.is_empty() { stale.status.to_string() } else { said },
    );
    Ok(())
}

/// The second process: makes a context, destroys it, and asks about it.
pub(crate) fn ask_stale() -> anyhow::Result<()> {
    let cuda = Cuda::open()?;
    let (mut context, mut version) = (CUcontext::NULL, 0 as c_uint);
    // SAFETY: outputs are live locals. The purpose is to find out whether the last call is harmless.
    let answer = unsafe {
        call!(cuda, cuCtxCreate_v2(&mut context, 0, cuda.device))?;
        call!(cuda, cuCtxDestroy_v2(context))?;
        call!(cuda, cuCtxGetApiVersion(context, &mut version))
    };
    println!("{}", answer_name(&answer));
    Ok(())
}
