//! The gRPC contracts of Aliquot, and the limits of their fields that no type expresses.
//!
//! The `.proto` files beside this crate are the contracts and carry their documentation. This crate holds the code
//! generated from them. It imports none of our crates.

mod image;
pub mod secret;

/// The node manager's API, `aliquot/node/v1/node.proto`.
pub mod node {
    /// The only version of this API so far.
    #[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto file")]
    pub mod v1 {
        tonic::include_proto!("aliquot.node.v1");

        /// The descriptors of this API, for server reflection.
        pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/node.bin"));

        /// Maximum length of a slice's description.
        pub const DESCRIPTION_BYTES_MAX: usize = 1024;
    }
}

/// The messages between nodes and the scheduler, `aliquot/agent/v1/agent.proto`.
pub mod agent {
    /// The only version of this API so far.
    #[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto file")]
    pub mod v1 {
        tonic::include_proto!("aliquot.agent.v1");

        /// The descriptors of this API, for server reflection.
        pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bin"));

        pub use crate::image::is_image_reference;

        /// The metadata in which a standby scheduler tells a node where the leader is.
        pub const LEADER: &str = "aliquot-leader";
    }
}

/// The reports of managers to the scheduler of a Kubernetes cluster, `aliquot/reports/v1/reports.proto`.
pub mod reports {
    /// The first version of reports, which both sides speak.
    #[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto file")]
    pub mod v1 {
        tonic::include_proto!("aliquot.reports.v1");

        /// The audience of the service account tokens with which managers join.
        pub const AUDIENCE: &str = "reports.aliquot.dev";

        /// Maximum length of a message. A slice takes a few hundred bytes.
        pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
    }
}

/// The scheduler's API, `aliquot/scheduler/v1/scheduler.proto`.
pub mod scheduler {
    /// The only version of this API so far.
    #[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto file")]
    pub mod v1 {
        tonic::include_proto!("aliquot.scheduler.v1");

        /// The descriptors of this API, for server reflection.
        pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scheduler.bin"));
    }
}

/// The data between users and running jobs, `aliquot/stream/v1/stream.proto`.
pub mod stream {
    /// The only version of this API so far.
    #[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto file")]
    pub mod v1 {
        tonic::include_proto!("aliquot.stream.v1");

        /// Maximum length of the data in a frame.
        pub const DATA_BYTES_MAX: usize = 64 << 10;

        /// The most data in bytes that may wait in a stream while its receiver does not read.
        pub const STREAM_WINDOW_BYTES: u32 = 512 << 10;

        /// The same for all streams of a connection. Servers allow no more streams than fit in it, so that a stream that is
        /// not read does not block the others.
        pub const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
    }
}

/// The protocols between kubelet and its plugins, `kubelet/`. Kubernetes defines them.
#[allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto files")]
pub mod kubelet {
    /// How plugins register with kubelet, version 1.
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }
    /// DRA drivers, version 1.
    pub mod dra {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    /// Health of a DRA driver's devices, version 1alpha1.
    pub mod dra_health {
        tonic::include_proto!("v1alpha1");
    }
    /// Device plugins, version 1beta1.
    pub mod device_plugin {
        tonic::include_proto!("v1beta1");
    }
    /// Which pod has which devices, version 1.
    pub mod pod_resources {
        tonic::include_proto!("v1");
    }
}
