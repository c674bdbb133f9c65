//! An older C library, to compile for and to run with.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::debian::{self, Packages};
use crate::{HostProgram, RootFs, artifacts};

/// The Debian release that is unpacked. It is the last one whose C library (2.31) has the thread functions and the
/// loader's functions in separate libraries, and the oldest one that package sources still offer.
const SUITE: &str = "bullseye";
/// The C library, the files to compile for it, and the compiler's support library that the simulated driver needs.
const PACKAGES: [&str; 5] = ["libc6", "libc6-dev", "libcrypt1", "linux-libc-dev", "libgcc-s1"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The C library of Debian 11 in a directory, with its headers. It is unpacked once and kept in the target directory.
pub struct Sysroot {
    dir: PathBuf,
    /// The directory in which the linker finds the driver.
    link_dir: PathBuf,
    /// The simulated GPU's `libcuda.so.1`, linked to that C library.
    driver: PathBuf,
}

impl Sysroot {
    /// The sysroot. The first call makes it, which needs Debian's package sources and the network.
    #[must_use]
    pub fn debian_11() -> &'static Sysroot {
        static MADE: OnceLock<Sysroot> = OnceLock::new();
        MADE.get_or_init(|| {
            let base = artifacts::scratch_dir("sysroot");
            let dir = debian::unpacked(&Packages { suite: SUITE, components: "main", names: &PACKAGES });
            let _lock = debian::lock(&base);
            let driver = artifacts::fake_cuda_linked_with(&base.join("target"), &flags(&dir));
            // The linker looks for `-lcuda` under this name.
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
        // Otherwise the linker would look for the driver's own dependencies among this machine's libraries.
        let link = ["-Wl,--allow-shlib-undefined", &search, "-lcuda"];
        let arguments: Vec<&str> = flags.iter().map(String::as_str).chain(link).collect();
        HostProgram::variant(name, SUITE, &arguments)
    }

    /// The files to which programs are linked: the C library's shared objects, the compiler's support library, and the
    /// archive with the functions that the C library has in each program instead of in itself.
    #[must_use]
    pub fn libraries(&self) -> Vec<PathBuf> {
        let shared = ["lib/x86_64-linux-gnu", "lib64"]
            .iter()
            .flat_map(|dir| fs::read_dir(self.dir.join(dir)).expect("a directory of the C library").flatten())
            .filter(|entry| entry.file_name().to_string_lossy().contains(".so"))
            .filter_map(|entry| fs::canonicalize(entry.path()).ok())
            .filter(|file| file.is_file());
        shared.chain([self.dir.join(LIBRARIES).join("libc_nonshared.a")]).collect()
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

/// Flags that make the compiler use the C library in `sysroot` instead of this machine's. The second flag is for the
/// start files, which the compiler looks for in its own directory first.
fn flags(sysroot: &Path) -> [String; 2] {
    [format!("--sysroot={}", sysroot.display()), format!("-B{}/", sysroot.join(LIBRARIES).display())]
}
