//! Keeps what the engine has learned in a `ConfigMap`, so that the next leader goes on with it: what queues have used so
//! far, and since when room is kept for whom. Everything else follows from the objects of the API server.
//!
//! The leader writes it once in a while, and the next leader reads it before it decides anything. It costs fairness if
//! it is lost, and no pod its place. So a leader without the right to read or write it schedules all the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_api_server::{Client, is_forbidden, is_not_found, message};
use aliquot_scheduler_engine::Memory;
use aliquot_scheduler_records::{read_memory, write_memory};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::serve::{RETRY, Shared};
use crate::telemetry::Written;

/// The name of the `ConfigMap`.
const NAME: &str = "aliquot-scheduler-memory";
/// The field with the memory.
const MEMORY: &str = "memory";
/// The field with the number of the memory's format.
const FORMAT: &str = "format";
/// The longest memory that is written, in bytes. Kubernetes allows 1 MiB in a `ConfigMap`.
const BYTES_MAX: usize = 1_000_000;

/// What an earlier leader has learned. It waits until the API server answers.
pub(crate) async fn read(client: Client, namespace: &str) -> Memory {
    let config_maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    loop {
        match config_maps.get_opt(NAME).await {
            Ok(found) => return found.as_ref().map(memory_in).unwrap_or_default(),
            Err(error) if is_forbidden(&error) => {
                let error = message(&error);
                warn!(error, name = NAME, "the ConfigMap may not be read; what queues have used before is not known");
                return Memory::default();
            }
            Err(error) => warn!(error = message(&error), name = NAME, "cannot read the ConfigMap; trying again"),
        }
        sleep(RETRY).await;
    }
}

/// The memory in a `ConfigMap`. One that cannot be read is replaced by the next one.
fn memory_in(config_map: &ConfigMap) -> Memory {
    let field = |name: &str| config_map.data.as_ref()?.get(name);
    let Some((format, text)) = field(FORMAT).zip(field(MEMORY)) else { return Memory::default() };
    let format = format.parse().map_err(|_| format!("its format is {format:?}, which is no number"));
    match format.and_then(|format| read_memory(format, text)) {
        Ok(memory) => {
            info!(queues = memory.usage.len(), "this leader goes on with what an earlier one has learned");
            memory
        }
        Err(why) => {
            warn!(why, name = NAME, "the ConfigMap cannot be used; what queues have used before is not known");
            Memory::default()
        }
    }
}

/// Writes each memory, for as long as this replica leads.
pub(crate) async fn run(client: Client, namespace: &str, shared: Arc<Shared>, mut memories: watch::Receiver<Memory>) {
    let config_maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    // The sender ends with the engine, and all of this leader does then.
    while memories.changed().await.is_ok() {
        let data = data_of(&memories.borrow_and_update());
        let Some(left) = shared.fence.left() else { continue };
        if let Ok(Err(error)) = timeout(left, write(&config_maps, &data)).await {
            shared.status.write_refused(Written::Memory, NAME, &error);
        }
    }
}

/// The fields of a `ConfigMap` with this memory.
fn data_of(memory: &Memory) -> BTreeMap<String, String> {
    // A group counts from the arrival of its first pod, which the API server knows. Only since when it is not whole has
    // to be remembered.
    let is_stale = |(.., stale_since_ms): &&(String, String, u64, Option<u64>)| stale_since_ms.is_some();
    let groups = memory.groups.iter().filter(is_stale).cloned().collect();
    let mut memory = Memory { groups, ..memory.clone() };
    let (mut format, mut text) = write_memory(&memory);
    if text.len() > BYTES_MAX {
        // What pods usually ask for is learned again soon.
        memory.arrivals = None;
        (format, text) = write_memory(&memory);
    }
    BTreeMap::from([(FORMAT.to_owned(), format.to_string()), (MEMORY.to_owned(), text)])
}

async fn write(config_maps: &Api<ConfigMap>, data: &BTreeMap<String, String>) -> kube::Result<()> {
    let patch = Patch::Merge(json!({"data": data}));
    match config_maps.patch(NAME, &PatchParams::default(), &patch).await {
        Err(error) if is_not_found(&error) => {
            let metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
            let config_map = ConfigMap { metadata, data: Some(data.clone()), ..ConfigMap::default() };
            config_maps.create(&PostParams::default(), &config_map).await.map(drop)
        }
        patched => patched.map(drop),
    }
}
