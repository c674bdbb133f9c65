//! Carries the engine's commands to nodes.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use aliquot_proto::agent::v1 as wire_types;
use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_scheduler_engine::{Backend, Command, Order};
use aliquot_scheduler_store::Leadership;

use crate::clock::Clock;
use crate::controller::Inbox;
use crate::jobs::{ClaimName, StartOrder};
use crate::sessions::Sessions;
use crate::wire;

/// Sends commands about a node as a whole at once. Commands about a claim go through the controller, which knows the
/// job's program; it keeps them in the order in which they were issued.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) sessions: Sessions,
    pub(crate) controller: Sender<Inbox>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) leadership: Leadership,
}

impl Backend for Nodes {
    /// A scheduler that no longer leads sends nothing. A lease is the only command that is not in the store first, so
    /// the next leader waits for the longest possible one, counted from when it began to lead. A lease counts from when
    /// the node asked for it, which was before this check, and so before the end of this scheduler's own lease.
    fn carry_out(&mut self, command: Command) {
        if !self.leadership.holds() {
            return;
        }
        let Command { node, session, order } = command;
        let message = match order {
            Order::Start { claim, generation, amounts, deadline_ms, term } => {
                // All claims have such names, except those that a node reports and that no scheduler has started.
                if let Some(claim) = ClaimName::parse(claim.as_str()) {
                    let order = StartOrder { node, session, claim, generation, amounts, deadline_ms, term };
                    _ = self.controller.send(Inbox::Start(order));
                }
                return;
            }
            Order::Stop { claim, instance, generation, deadline_ms } => {
                let stop = wire_types::Stop {
                    claim: claim.to_string(),
                    instance: Some(wire::to_generation(instance)),
                    generation: Some(wire::to_generation(generation)),
                    deadline_ms: deadline_ms.saturating_sub(self.clock.now_ms()),
                };
                _ = self.controller.send(Inbox::Stop { node, message: wire::message(session, Message::Stop(stop)) });
                return;
            }
            // Users of this scheduler cannot ask for a resize yet, so the engine issues none.
            Order::Resize { .. } => return,
            Order::Renew { sequence, lease_ms, term } => Message::Renew(wire_types::Renew { sequence, lease_ms, term }),
            Order::EndSession { term } => Message::EndSession(wire_types::EndSession { term }),
            Order::Report { term } => Message::Report(wire_types::AskReport { term }),
        };
        // A node that cannot be reached reports when it is back.
        self.sessions.send(node.as_str(), wire::message(session, message));
    }
}

/// The message that tells a node to start a claim.
pub(crate) fn start_message(
    order: &StartOrder,
    process: wire_types::Process,
    now_ms: u64,
) -> wire_types::SchedulerMessage {
    let start = wire_types::Start {
        claim: order.claim.to_string(),
        generation: Some(wire::to_generation(order.generation)),
        amounts: Some(wire::to_amounts(&order.amounts)),
        deadline_ms: order.deadline_ms.saturating_sub(now_ms),
        process: Some(process),
        term: order.term,
    };
    wire::message(order.session, Message::Start(start))
}

#[cfg(test)]
mod tests;
