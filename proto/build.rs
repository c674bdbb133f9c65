//! Generates the Rust side of the contracts. The compiler for `.proto` files is a Rust library: no `protoc` is needed.

use std::path::PathBuf;
use std::{env, error, fs};

/// Our own, which the server offers by reflection.
const OWN: [&str; 1] = ["aliquot/node/v1/node.proto"];
/// Kubelet's; in each we implement one side.
const KUBELET: [&str; 5] = [
    "kubelet/registration/v1.proto",
    "kubelet/dra/v1.proto",
    "kubelet/dra/health_v1alpha1.proto",
    "kubelet/device_plugin/v1beta1.proto",
    "kubelet/pod_resources/v1.proto",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    for contract in OWN.iter().chain(&KUBELET) {
        println!("cargo::rerun-if-changed={contract}");
    }
    let own = protox::compile(OWN.map(|contract| root.join(contract)), [&root])?;
    // The descriptors that the server hands out by reflection.
    let encoded = prost::Message::encode_to_vec(&own);
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin"), encoded)?;
    tonic_prost_build::configure().compile_fds(own)?;
    let kubelet = protox::compile(KUBELET.map(|contract| root.join(contract)), [&root])?;
    tonic_prost_build::configure().compile_fds(kubelet)?;
    Ok(())
}
