//! `aliquot token`: lets a node join the cluster.

use std::path::Path;

use aliquot_proto::scheduler::v1::CreateJoinTokenRequest;
use serde_json::json;

use super::{clock_human, connect_to_running, failed};
use crate::args::TokenArgs;
use crate::error::Result;
use crate::output;
use crate::table::printable;

/// Makes a join token, and prints the command with which a node joins.
pub(crate) async fn token(socket: Option<&Path>, args: &TokenArgs) -> Result<()> {
    let request = CreateJoinTokenRequest {
        valid_ms: args.valid.map_or(0, |valid| valid.duration().as_millis() as u64),
        uses: args.uses.unwrap_or(0),
        replace: args.replace,
    };
    let answer = connect_to_running(socket).await?.create_join_token(request).await.map_err(failed)?.into_inner();
    if args.json {
        return output::print_json(&json!({
            "token": answer.token,
            "command": answer.command,
            "expires_unix_ms": answer.expires_unix_ms,
        }));
    }
    output::print(&format!("{}\n", printable(&answer.command)))?;
    output::say(format_args!(
        "Run this on the node, before {}. If a manager is a service there, write both values into [cluster] of its \
         configuration instead, as scheduler and token, and restart it.",
        clock_human(answer.expires_unix_ms)
    ));
    Ok(())
}
