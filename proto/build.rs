//! Generates the Rust side of the contracts. The compiler for `.proto` files is a Rust library: no `protoc` is needed.

use std::path::PathBuf;
use std::{env, error, fs};

/// Aliquot's own contracts, which servers offer by reflection: the name by which `lib.rs` finds the descriptors, and
/// the file.
const OWN: [(&str, &str); 3] = [
    ("node", "aliquot/node/v1/node.proto"),
    ("agent", "aliquot/agent/v1/agent.proto"),
    ("scheduler", "aliquot/scheduler/v1/scheduler.proto"),
];
/// The contract between managers and the scheduler in Kubernetes, which is not offered by reflection.
const REPORTS: &str = "aliquot/reports/v1/reports.proto";
/// Imported by several of Aliquot's own contracts.
const SHARED: &str = "aliquot/stream/v1/stream.proto";
/// Messages that contain a secret's value. Their `Debug` output in `src/secret.rs` leaves it out.
const SECRET: [&str; 2] = [".aliquot.agent.v1.Secret", ".aliquot.scheduler.v1.SetSecretRequest"];
/// Kubelet's contracts. Aliquot implements one side of each.
const KUBELET: [&str; 5] = [
    "kubelet/registration/v1.proto",
    "kubelet/dra/v1.proto",
    "kubelet/dra/health_v1alpha1.proto",
    "kubelet/device_plugin/v1beta1.proto",
    "kubelet/pod_resources/v1.proto",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    for contract in OWN.iter().map(|(_, contract)| contract).chain(&KUBELET).chain([&SHARED, &REPORTS]) {
        println!("cargo::rerun-if-changed={contract}");
    }
    for (name, contract) in OWN {
        let descriptors = protox::compile([root.join(contract)], [&root])?;
        let encoded = prost::Message::encode_to_vec(&descriptors);
        fs::write(PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.bin")), encoded)?;
        tonic_prost_build::configure().skip_debug(SECRET).compile_fds(descriptors)?;
    }
    tonic_prost_build::configure().compile_fds(protox::compile([root.join(REPORTS)], [&root])?)?;
    let kubelet = protox::compile(KUBELET.map(|contract| root.join(contract)), [&root])?;
    tonic_prost_build::configure().compile_fds(kubelet)?;
    Ok(())
}
