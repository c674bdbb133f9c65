//! Processes: fork, exec, and death by a signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::cuda::{Cuda, call};
use crate::findings::Findings;
use crate::scene::{Scene, is_about};
use crate::way::Way;

/// Memory that the child holds.
const HELD_BYTES: u64 = 256 << 20;
const CHILD_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// The child's message when it holds its memory.
const READY: &str = "ready";
/// Added to a driver's code, to distinguish it from the process's own exit statuses.
const CODE_BASE: u32 = 100;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    forked_child(scene, findings)?;
    started_child(scene, findings)
}

/// A forked child cannot use CUDA. It must end, and must not affect its parent's memory.
fn forked_child(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let address = cuda.allocate(HELD_BYTES)?;
    let before = scene.settled_free()?;
    // SAFETY: no other thread of this process holds a lock of the C library. The child only calls the driver, which is
    // the subject of this case, and ends.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            let code = cuda.allocate(1 << 20).err().map_or(0, |error| error.result.0);
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit((CODE_BASE + code) as i32 & 0xff) };
        }
        ForkResult::Parent { child } => child,
    };
    let status = wait_for(child)?;
    findings.expect("a forked child that calls the driver ends", status.is_some(), "");
    findings.answer("cuMemAlloc in a forked child", format!("{status:?}").replace(&child.to_string(), "child"));
    if scene.way == Way::Limited {
        let after = scene.wait_for_free(before)?;
        findings.expect(
            "its parent's memory stays charged",
            is_about(after, before),
            format!("{before} bytes free before, {after} after"),
        );
    }
    findings.expect_ok("its parent can go on", cuda.free(address));
    Ok(())
}

/// Waits for the process. Returns how it ended; `None`: it had to be killed.
fn wait_for(child: Pid) -> anyhow::Result<Option<WaitStatus>> {
    let deadline = Instant::now() + CHILD_TIMEOUT;
    while Instant::now() < deadline {
        match waitpid(child, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => std::thread::sleep(LOOK_INTERVAL),
            status => return Ok(Some(status)),
        }
    }
    kill(child, Signal::SIGKILL)?;
    waitpid(child, None)?;
    Ok(None)
}

/// A child program is in the same slice. When it is killed, its memory is free at once.
fn started_child(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let before = scene.settled_free()?;
    let mut child = Holder::start(HELD_BYTES, 0)?;
    if scene.way == Way::Limited {
        let free = scene.settled_free()?;
        findings.expect(
            "what a started program takes counts against the same cap",
            before.saturating_sub(free) >= HELD_BYTES,
            format!("{before} bytes free before, {free} beside it"),
        );
        let killed = Instant::now();
        child.kill()?;
        let after = scene.wait_for_free(before)?;
        findings.expect(
            "what a killed process held is free again",
            is_about(after, before),
            format!("{after} of {before} bytes after {} ms", killed.elapsed().as_millis()),
        );
    } else {
        child.kill()?;
        findings.expect("a started program can use the device", true, "");
    }
    Ok(())
}

/// A process that holds device memory. Dropping this kills it.
pub(crate) struct Holder(Child);

impl Holder {
    /// Starts a process that holds `bytes` of the device and `host_bytes` of page-locked host memory.
    pub(crate) fn start(bytes: u64, host_bytes: u64) -> anyhow::Result<Holder> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "hold", &bytes.to_string(), &host_bytes.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = Holder(child.context("cannot start a second process")?);
        let mut line = String::new();
        BufReader::new(holder.0.stdout.take().context("no pipe")?).read_line(&mut line)?;
        if line.trim() != READY {
            bail!("the second process cannot take its memory: {line:?}");
        }
        Ok(holder)
    }

    /// The id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Fails if it has been killed already.
        let _ = self.kill();
    }
}

/// Takes memory for as long as the process lives.
pub(crate) fn take_memory(cuda: &Cuda, bytes: u64, host_bytes: u64) -> anyhow::Result<()> {
    if bytes > 0 {
        cuda.allocate(bytes)?;
    }
    if host_bytes > 0 {
        let (mut address, host_bytes) = (std::ptr::null_mut(), usize::try_from(host_bytes)?);
        // SAFETY: the output is a live local.
        unsafe { call!(cuda, cuMemHostAlloc(&mut address, host_bytes, 0))? };
    }
    Ok(())
}

/// The second process: allocates memory, and holds it until its standard input ends.
pub(crate) fn hold_memory(bytes: u64, host_bytes: u64) -> anyhow::Result<()> {
    let cuda = Cuda::open()?;
    take_memory(&cuda, bytes, host_bytes)?;
    let mut output = std::io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
