//! Debian packages, unpacked into a directory without being installed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use crate::{artifacts, tool};

/// Packages of one release.
pub struct Packages<'a> {
    /// The release's name, such as `bullseye`.
    pub suite: &'a str,
    /// The release's components that contain the packages, separated by spaces.
    pub components: &'a str,
    /// The packages' names. Their dependencies are not added.
    pub names: &'a [&'a str],
}

/// The directory with the contents of `packages`. It is made once and kept in the target directory.
#[must_use]
pub fn unpacked(packages: &Packages<'_>) -> PathBuf {
    let base = artifacts::scratch_dir("debian");
    let _lock = lock(&base);
    let dir = base.join([&[packages.suite], packages.names].concat().join("-"));
    if !dir.exists() {
        unpack(packages, &base, &dir);
    }
    dir
}

/// Takes the lock of `dir`, which keeps other test processes from changing it until the returned file is dropped.
pub(crate) fn lock(dir: &Path) -> File {
    let lock = File::create(dir.join("lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    lock
}

/// The name of this machine's release.
#[must_use]
pub fn own_suite() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.expect("this test gets packages of this machine's Debian release, and /etc/os-release names none").to_owned()
}

/// Downloads the packages and unpacks them into `dir`. The directory gets its name only when it is complete.
fn unpack(packages: &Packages<'_>, base: &Path, dir: &Path) {
    let Packages { suite, components, names } = packages;
    let work = tempfile::tempdir_in(base).expect("a temporary directory");
    let (apt, archives, root) = (work.path().join("apt"), work.path().join("archives"), work.path().join("root"));
    for dir in [&apt.join("lists/partial"), &apt.join("cache/archives/partial"), &archives, &root] {
        fs::create_dir_all(dir).expect("a directory for packages");
    }
    fs::write(apt.join("sources.list"), format!("deb {} {suite} {components}\n", source())).expect("apt's sources");
    // Separate lists, cache and package status: apt does not touch the machine's.
    let own = |name: &str| apt.join(name).display().to_string();
    let configuration = [
        ("Dir::State", own("")),
        ("Dir::State::lists", own("lists")),
        ("Dir::State::status", "/dev/null".to_owned()),
        ("Dir::Cache", own("cache")),
        ("Dir::Etc::sourcelist", own("sources.list")),
        ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::Retries", "5".to_owned()),
        // Without this, apt succeeds although a list is missing.
        ("APT::Update::Error-Mode", "any".to_owned()),
        // apt's sandbox user could not write to these directories.
        ("APT::Sandbox::User", String::new()),
    ];
    let configuration: String = configuration.iter().map(|(key, value)| format!("{key} {value:?};\n")).collect();
    fs::write(apt.join("apt.conf"), configuration).expect("apt's configuration");
    let run = |program: &str, arguments: &[OsString]| {
        let mut command = Command::new(tool(program, "apt dpkg"));
        command.args(arguments).env("APT_CONFIG", apt.join("apt.conf")).current_dir(&archives);
        let output = command.output().expect("a program that was found runs");
        assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("apt-get", &["update".into()]);
    run("apt-get", &["download"].iter().chain(*names).map(OsString::from).collect::<Vec<_>>());
    for package in fs::read_dir(&archives).expect("the packages").flatten() {
        run("dpkg-deb", &["-x".into(), package.path().into(), root.clone().into()]);
    }
    make_links_stay_inside(&root, &root);
    fs::rename(&root, dir).expect("the unpacked packages get their name");
}

/// Where this machine gets Debian's packages from.
fn source() -> String {
    let listed = Command::new(tool("apt-get", "apt"))
        .args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)"])
        .output();
    let text = String::from_utf8_lossy(&listed.expect("apt-get runs").stdout).into_owned();
    let source = text.lines().find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    source.expect("this test gets packages from Debian's package sources, and none is configured").to_owned()
}

/// Rewrites absolute links below `dir` as if `root` were the root directory.
fn make_links_stay_inside(root: &Path, dir: &Path) {
    for entry in fs::read_dir(dir).expect("an unpacked directory").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a file has a type"));
        if kind.is_dir() {
            make_links_stay_inside(root, &path);
        } else if kind.is_symlink()
            && let Ok(target) = fs::read_link(&path)
            && let Ok(below_root) = target.strip_prefix("/")
        {
            let up: PathBuf = dir.strip_prefix(root).expect("below the root").iter().map(|_| "..").collect();
            fs::remove_file(&path).and_then(|()| symlink(up.join(below_root), &path)).expect("a link is replaced");
        }
    }
}
