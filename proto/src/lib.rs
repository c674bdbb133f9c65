//! The gRPC contracts of Aliquot: every one of them, and nothing else.
//!
//! The `.proto` files beside this crate are the contracts and carry their documentation; this crate is what is generated
//! from them. It imports nothing of ours.

/// The node manager's API, `aliquot/node/v1/node.proto`.
pub mod node {
    /// Version 1.
    #[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto file")]
    pub mod v1 {
        tonic::include_proto!("aliquot.node.v1");
    }
}

/// The descriptors of all contracts, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
