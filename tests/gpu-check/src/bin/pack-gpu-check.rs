//! Makes the folder that is copied to a machine with a GPU: the programs, prebuilt for old C libraries, and the scripts
//! to run them.
//!
//! ```text
//! cargo run --release -p aliquot-gpu-check --bin pack-gpu-check -- OUT_DIR
//! ```
//!
//! The programs are linked by `zig cc`, which knows the symbols of every C library since 2.17, so it can link for an
//! older one than this machine's. It is installed from PyPI (needs python3 with venv) and kept in the target directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::Parser;
use object::Endianness;
use object::read::elf::{ElfFile64, FileHeader};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The oldest C library that the programs must start with: that of Debian 11 and Ubuntu 20.04.
const GLIBC_FLOOR: (u32, u32) = (2, 31);
/// The linker, by its version on PyPI.
const ZIG: &str = "ziglang==0.17.1";
/// Packages and their programs.
const PROGRAMS: [(&str, &str); 3] =
    [("aliquot-cli", "aliquot"), ("aliquot-manager", "aliquot-manager"), ("aliquot-gpu-check", "aliquot-gpu-check")];
/// Packages and their libraries: the simulated GPU, with which the real one is compared.
const LIBRARIES: [(&str, &str); 2] =
    [("aliquot-fake-cuda", "libaliquot_fake_cuda.so"), ("aliquot-fake-nvml", "libaliquot_fake_nvml.so")];
/// Files of folder/ that are copied too.
const FILES: [&str; 6] =
    ["run.sh", "check_torch.py", "check_runtime.cu", "check_frameworks.py", "check_triton.py", "README.txt"];

/// Packs the GPU check into a folder that runs without Rust, network or root on a machine with an NVIDIA GPU.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// The folder to make; it must not exist, or be empty
    out_dir: PathBuf,
    /// Directory with programs and libraries that are built already, to pack instead of building them for old C libraries
    #[arg(long, value_name = "DIR", conflicts_with = "build_dir")]
    programs: Option<PathBuf>,
    /// Directory for intermediate build files [default: gpu-check in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    build_dir: Option<PathBuf>,
    /// The most bytes that the folder may hold [default: 64 MiB]
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, hide_default_value = true)]
    bytes_max: u64,
}

fn main() -> ExitCode {
    match pack(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn pack(args: &Args) -> anyhow::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out_dir = &args.out_dir;
    if fs::read_dir(out_dir).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is not empty; name another folder or remove it", out_dir.display());
    }
    let built = match &args.programs {
        Some(dir) => dir.clone(),
        None => build_for_floor(args.build_dir.as_deref(), &PROGRAMS, &[])?,
    };

    fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    let mut needed = (0, 0);
    for (_, file) in PROGRAMS.iter().chain(&LIBRARIES) {
        let (from, to) = (built.join(file), out_dir.join(file));
        needed = needed.max(needed_glibc(&from)?);
        fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    for file in FILES {
        fs::copy(package.join("folder").join(file), out_dir.join(file))
            .with_context(|| format!("cannot copy {file}"))?;
    }
    let sizes =
        fs::read_dir(out_dir)?.map(|entry| Ok(entry?.metadata()?.len())).collect::<anyhow::Result<Vec<u64>>>()?;
    let bytes: u64 = sizes.iter().sum();
    if bytes > args.bytes_max {
        bail!(
            "{} holds {bytes} bytes; at most {} are allowed. Optimise more, or allow more by --bytes-max",
            out_dir.display(),
            args.bytes_max
        );
    }
    println!(
        "{}: {:.1} MiB; on the machine with the GPU, which needs glibc {}.{} or newer: ./run.sh",
        out_dir.display(),
        bytes as f64 / f64::from(1 << 20),
        needed.0,
        needed.1
    );
    Ok(())
}

/// Builds `programs` and [`LIBRARIES`] so that they start with a C library as old as [`GLIBC_FLOOR`], and returns the
/// directory that holds them. Without a `build_dir` a directory in cargo's target directory is used. The `settings` are
/// cargo's, as for its option `--config`.
fn build_for_floor(build_dir: Option<&Path>, programs: &[(&str, &str)], settings: &[&str]) -> anyhow::Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let in_target = || {
        let target_dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
        target_dir.join("gpu-check")
    };
    let build_dir = build_dir.map_or_else(in_target, Path::to_owned);
    fs::create_dir_all(&build_dir)?;
    let build_dir = build_dir.canonicalize()?;
    let linker = linker(&build_dir)?;

    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace).args(["build", "--release", "--target", TARGET, "--target-dir"]).arg(&build_dir);
    cargo.arg("--config").arg(format!("target.{TARGET}.linker={:?}", linker.display().to_string()));
    for setting in ["profile.release.strip=\"symbols\""].iter().chain(settings) {
        cargo.args(["--config", setting]);
    }
    for (package, program) in programs {
        cargo.args(["--package", package, "--bin", program]);
    }
    // With `--lib`, cargo builds the packages' libraries.
    cargo.arg("--lib").args(LIBRARIES.iter().flat_map(|(package, _)| ["--package", package]));
    run(&mut cargo)?;

    let built = build_dir.join(TARGET).join("release");
    for (_, file) in programs.iter().chain(&LIBRARIES) {
        let path = built.join(file);
        let (needed, (major, minor)) = (needed_glibc(&path)?, GLIBC_FLOOR);
        if needed > GLIBC_FLOOR {
            bail!("{} needs glibc {}.{}, which is newer than {major}.{minor}", path.display(), needed.0, needed.1);
        }
    }
    Ok(built)
}

/// Makes a linker script in `build_dir` that links for [`GLIBC_FLOOR`].
fn linker(build_dir: &Path) -> anyhow::Result<PathBuf> {
    let venv = build_dir.join("zig");
    let python = venv.join("bin/python");
    let installed = |python: &Path| {
        run(Command::new(python).args(["-m", "ziglang", "version"]).stdout(Stdio::null()).stderr(Stdio::null()))
    };
    if installed(&python).is_err() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ZIG]))?;
    }
    let (major, minor) = GLIBC_FLOOR;
    // rustc infers the kind of a linker from its name, so this one is named like a C compiler.
    let script = build_dir.join("zig-cc");
    let text = format!(
        "#!/bin/sh\nZIG_GLOBAL_CACHE_DIR='{0}/zig-cache' exec '{1}' -m ziglang cc -target x86_64-linux-gnu.{major}.{minor} \"$@\"\n",
        build_dir.display(),
        python.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    Ok(script)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// The oldest version of glibc (major, minor) with which `program` starts.
fn needed_glibc(program: &Path) -> anyhow::Result<(u32, u32)> {
    let data = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let versions = needed_versions(&data).with_context(|| format!("cannot tell what {} needs", program.display()))?;
    let needed = versions.iter().filter_map(|version| glibc_version(version)).max();
    needed.with_context(|| format!("{} needs no version of glibc: it is not a program for it", program.display()))
}

/// The symbol versions that a program needs from its libraries.
fn needed_versions(data: &[u8]) -> anyhow::Result<Vec<String>> {
    let file = ElfFile64::<Endianness>::parse(data)?;
    let endian = file.elf_header().endian()?;
    let sections = file.elf_section_table();
    let Some((mut libraries, link)) = sections.gnu_verneed(endian, data)? else {
        bail!("it needs no version of anything")
    };
    let strings = sections.strings(endian, data, link)?;
    let mut versions = Vec::new();
    while let Some((_, mut needed)) = libraries.next()? {
        while let Some(version) = needed.next()? {
            versions.push(String::from_utf8_lossy(version.name(endian, strings)?).into_owned());
        }
    }
    Ok(versions)
}

/// Major and minor of, for example, `GLIBC_2.31`; `None` if it is not a version of the C library.
fn glibc_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_built_for_the_oldest_c_library() {
        // The check itself stands for all programs. The suite `pack` looks at the functions that the others need.
        let check = PROGRAMS.iter().position(|(_, program)| *program == "aliquot-gpu-check").unwrap();
        let built = build_for_floor(None, &PROGRAMS[check..=check], &["profile.release.opt-level=0"]).unwrap();
        assert!(needed_glibc(&built.join("aliquot-gpu-check")).unwrap() <= GLIBC_FLOOR);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(glibc_version("GLIBC_2.4"), Some((2, 4)));
        assert!(glibc_version("GLIBC_2.4") < glibc_version("GLIBC_2.31"));
        assert!(glibc_version("GLIBC_2.34").is_some_and(|version| version > GLIBC_FLOOR));
        assert_eq!(glibc_version("GCC_3.0"), None);
    }

    #[test]
    fn what_a_program_needs_is_found() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needed_versions(&own).unwrap().iter().any(|version| version.starts_with("GLIBC_2.")));
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        assert!(needed_versions(b"#!/bin/sh\n").is_err());
    }
}
