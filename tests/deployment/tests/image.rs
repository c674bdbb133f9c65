//! The image that `deploy/kubernetes/image` makes, run by podman with exactly the rights that the manifest gives it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_deployment::{directory, object};
use aliquot_harness::{Container, HostProgram, Image, MIB, Process, SimulatedGpu, artifacts, run, tool, wait};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PodSpec;
use tempfile::TempDir;

/// The names of the image's programs.
const PROGRAMS: [&str; 4] = ["aliquot-manager", "aliquot", "aliquot-scheduler", "kubectl-aliquot"];

/// Makes the image's archive in `dir`, of these programs. Debugging information is left out: it is most of a program,
/// and compressing it would take most of the time.
fn archive(dir: &Path, name: &str, of: [&Path; 4]) -> PathBuf {
    let programs = dir.join("programs");
    fs::create_dir_all(&programs).unwrap();
    for (program, built) in PROGRAMS.iter().zip(of) {
        let stripped = programs.join(program);
        if !stripped.exists() {
            let _ = run(Command::new(tool("strip", "binutils")).arg("-o").arg(&stripped).arg(built)).success();
        }
    }
    let archive = dir.join(name);
    let reference = format!("localhost/aliquot-test-deployment:{}", std::process::id());
    let _ = run(Command::new(directory().join("image")).arg(&archive).arg(&programs).arg(reference)).success();
    archive
}

/// The manager's pod, and directories of the test's own in place of the node's.
struct Deployed {
    pod: PodSpec,
    dir: TempDir,
    gpu: SimulatedGpu,
    image: Image,
}

impl Deployed {
    fn new() -> Deployed {
        let pod = object::<DaemonSet>("base", "aliquot-manager").spec.template.spec.unwrap();
        let dir = tempfile::Builder::new().prefix("aliquot-deployed-").tempdir().unwrap();
        let gpu = SimulatedGpu::exact();
        let programs = [artifacts::manager(), artifacts::cli(), artifacts::scheduler(), artifacts::kubectl_plugin()];
        let image = Image::load(&archive(dir.path(), "image.tar", programs));
        let etc = dir.path().join("etc");
        fs::create_dir(&etc).unwrap();
        let settings = format!(
            "runtime_dir = {:?}\nhost_root = '/host'\nnvml_library = {:?}\n{}",
            dir.path().join("run/aliquot"),
            gpu.nvml_library(),
            gpu.for_containers("")
        );
        fs::write(etc.join("manager.toml"), settings).unwrap();
        Deployed { pod, dir, gpu, image }
    }

    /// The directory that stands for the node's directory `path`. If containers and the container runtime look there,
    /// it is the real one. If a manager on this machine would use it itself, it is the test's own.
    fn on_node(&self, path: &str) -> PathBuf {
        if ["/", "/var/run/cdi"].contains(&path) {
            path.into()
        } else {
            self.dir.path().join(path.trim_start_matches('/'))
        }
    }

    /// The manifest's settings of the manager's container, as podman's options.
    fn options(&self) -> Vec<String> {
        let container = &self.pod.containers[0];
        let context = container.security_context.as_ref().unwrap();
        assert_eq!(self.pod.host_pid, Some(true));
        let mut options: Vec<String> = ["--pid", "host", "--read-only-tmpfs=false"].map(String::from).to_vec();
        options.push(format!("--read-only={}", context.read_only_root_filesystem.unwrap()));
        options.push(format!("--user={}", context.run_as_user.unwrap()));
        let capabilities = context.capabilities.as_ref().unwrap();
        options.extend(capabilities.drop.iter().flatten().map(|name| format!("--cap-drop={name}")));
        options.extend(capabilities.add.iter().flatten().map(|name| format!("--cap-add={name}")));
        if context.allow_privilege_escalation == Some(false) {
            options.push("--security-opt=no-new-privileges".into());
        }
        for mount in container.volume_mounts.iter().flatten() {
            let volume = self.pod.volumes.iter().flatten().find(|volume| volume.name == mount.name).unwrap();
            // Such a volume is for the API server, which is not there.
            if volume.projected.is_some() {
                continue;
            }
            let host = match &volume.host_path {
                Some(host) => self.on_node(&host.path),
                None => self.dir.path().join("etc"),
            };
            fs::create_dir_all(&host).unwrap();
            // Containers get regions under the path that the manager knows.
            let inside =
                if mount.mount_path == "/run/aliquot" { host.display().to_string() } else { mount.mount_path.clone() };
            let access = if mount.read_only == Some(true) { "ro" } else { "rw" };
            options.push(format!("--volume={}:{inside}:{access}", host.display()));
        }
        // The simulated GPU takes the place of the files that NVIDIA's runtime adds.
        options.push(format!("--env=ALIQUOT_FAKE_GPU={}", self.gpu.config_file().display()));
        options.push(format!("--volume={0}:{0}:rw", self.gpu.dir().display()));
        let nvml = fs::canonicalize(self.gpu.nvml_library()).unwrap();
        options.push(format!("--volume={0}:{0}:ro", nvml.display()));
        options
    }

    fn start(&self) -> Manager {
        let options = self.options();
        let container = self.image.start(&options.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let probe = self.pod.containers[0].liveness_probe.clone().unwrap().exec.unwrap().command.unwrap();
        let mut manager = Manager { container, socket: self.dir.path().join("run/aliquot/manager.sock") };
        wait::until_true("the probe is answered", || {
            let process = manager.container.process();
            assert!(!process.has_ended(), "{}{}", process.output(), process.errors());
            manager.exec(&probe.iter().map(String::as_str).collect::<Vec<_>>()).wait().status.success()
        });
        manager
    }
}

struct Manager {
    container: Container,
    socket: PathBuf,
}

impl Manager {
    fn exec(&self, command: &[&str]) -> Process {
        self.container.exec(&["--env", &format!("ALIQUOT_SOCKET={}", self.socket.display())], command)
    }

    /// Runs `aliquot` with these arguments in the container, and returns its output.
    fn aliquot(&self, arguments: &[&str]) -> String {
        self.exec(&[&["aliquot"], arguments].concat()).wait().success().stdout
    }
}

#[test]
fn the_same_programs_give_the_same_image_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    // One small program under all names: which programs they are does not matter here.
    let programs = [artifacts::gpu_check(); 4];
    let images = ["a.tar", "b.tar"].map(|name| fs::read(archive(dir.path(), name, programs)).unwrap());
    assert!(images[0] == images[1], "two images of {} and {} bytes differ", images[0].len(), images[1].len());
}

#[test]
fn the_image_serves_slices_with_the_manifest_s_rights_and_its_upgrade_disturbs_nobody() {
    let deployed = Deployed::new();
    let program = HostProgram::linked(&deployed.gpu, "hold");
    let image = Image::with(&[&program]);
    let name = format!("deployed-{}", std::process::id());

    let manager = deployed.start();
    let _ = manager.aliquot(&["slice", "create", &name, "--gpu-core", "30", "--gpu-memory", "64MiB"]);
    let device = format!("aliquot.dev/slice={name}");
    let mut holder = image.start(&["--device", &device], &["/bin/hold-linked", &(16 * MIB).to_string()]);
    holder.process().wait_for("held");
    let used = |manager: &Manager| -> Option<u64> {
        let slices: serde_json::Value = serde_json::from_str(&manager.aliquot(&["ps", "--json"])).unwrap();
        let slice = slices["slices"].as_array()?.iter().find(|slice| slice["name"] == *name)?;
        assert!(slice["processes"].as_array().is_some_and(|processes| processes.len() <= 1), "{slice}");
        slice["processes"].as_array()?.first()?;
        slice["parts"][0]["memory_used_bytes"].as_u64()
    };
    wait::until_true("the manager knows the process", || used(&manager) == Some(16 * MIB));

    // As an upgrade does: the old one ends, then a new one starts.
    drop(manager);
    assert!(!holder.process().has_ended(), "{}", holder.process().errors());
    let manager = deployed.start();
    wait::until_true("the new manager knows the process", || used(&manager) == Some(16 * MIB));
    assert!(!holder.process().has_ended(), "{}", holder.process().errors());
    drop(holder);
    wait::until_true("the slice is empty", || used(&manager).is_none());
    let _ = manager.aliquot(&["slice", "rm", &name]);
}
