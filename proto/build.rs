//! Generates the Rust side of the contracts. The compiler for `.proto` files is a Rust library: no `protoc` is needed.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let contracts = ["aliquot/node/v1/node.proto"];
    for contract in contracts {
        println!("cargo::rerun-if-changed={contract}");
    }
    let set = protox::compile(contracts.map(|contract| root.join(contract)), [&root])?;
    // For server reflection: the descriptors as the server hands them out.
    let encoded = prost::Message::encode_to_vec(&set);
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin"), encoded)?;
    tonic_prost_build::configure().compile_fds(set)?;
    Ok(())
}
