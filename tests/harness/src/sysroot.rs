//! An older C library, to compile for and to run with.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::debian::{self, Packages};
use crate::{HostProgram, RootFs, artifacts};

/// The release whose packages are unpacked: the last one with a C library (2.31) that has threads and the loader's
/// functions in libraries of their own, as all before it have, and the oldest one that package sources of today still
/// offer.
const SUITE: &str = "bullseye";
/// The C library, what is needed to compile for it, and the one library of the compiler that the simulated driver
/// needs.
const PACKAGES: [&str; 5] = ["libc6", "libc6-dev", "libcrypt1", "linux-libc-dev", "libgcc-s1"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The C library of Debian 11 in a directory, with its headers. It is unpacked once and kept in the target directory.
pub struct Sysroot {
    dir: PathBuf,
    /// Where programs are linked to the driver.
    link_dir: PathBuf,
    /// The simulated GPU's `libcuda.so.1`, linked to that C library.
    driver: PathBuf,
}

impl Sysroot {
    /// The directory; made at the first call, which needs Debian's package sources and the network.
    #[must_use]
    pub fn debian_11() -> &'static Sysroot {
        static MADE: OnceLock<Sysroot> = OnceLock::new();
        MADE.get_or_init(|| {
            let base = artifacts::scratch_dir("sysroot");
            let dir = debian::unpacked(&Packages { suite: SUITE, components: "main", names: &PACKAGES });
            let _lock = debian::lock(&base);
            let driver = artifacts::fake_cuda_linked_with(&base.join("target"), &flags(&dir));
            // The linker looks for the library by the name that programs are linked by.
            let link = base.join("libcuda.so");
            let _ = fs::remove_file(&link);
            symlink(&driver, &link).expect("a link to the driver");
            Sysroot { dir, link_dir: base, driver }
        })
    }

    /// The program `tests/programs/<name>.c`, compiled for this C library and linked to the driver.
    #[must_use]
    pub fn program(&self, name: &str) -> HostProgram {
        let search = format!("-L{}", self.link_dir.display());
        let flags = flags(&self.dir);
        // What the driver itself needs, the linker would look for among this machine's libraries.
        let link = ["-Wl,--allow-shlib-undefined", &search, "-lcuda"];
        let arguments: Vec<&str> = flags.iter().map(String::as_str).chain(link).collect();
        HostProgram::variant(name, SUITE, &arguments)
    }

    /// A root file system with this C library, the driver, and `programs` in `/bin`.
    #[must_use]
    pub fn root(&self, programs: &[&HostProgram]) -> RootFs {
        let root = RootFs::new();
        for dir in ["lib/x86_64-linux-gnu", "lib64"] {
            for entry in fs::read_dir(self.dir.join(dir)).expect("a directory of the C library").flatten() {
                if let Ok(file) = fs::canonicalize(entry.path()) {
                    root.copy(&file, &format!("{dir}/{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        root.copy(&self.driver, "/usr/lib/libcuda.so.1");
        for program in programs {
            root.add_program(program);
        }
        root
    }
}

/// What makes the compiler take the C library in `sysroot` and not this machine's: the second flag is for its start
/// files, which it looks for beside itself first.
fn flags(sysroot: &Path) -> [String; 2] {
    [format!("--sysroot={}", sysroot.display()), format!("-B{}/", sysroot.join(LIBRARIES).display())]
}
