//! Messages to the controller that are still to be handled.

use std::collections::VecDeque;

use super::Inbox;

/// The most messages that are handled before their effects are saved and sent, and the most users' messages among them.
const BATCH: usize = 1024;
const USERS_BATCH: usize = 64;

/// Users' messages go before those of nodes and of the engine: one large job alone causes a hundred thousand of the
/// latter, and the user of the next job would wait for all of them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    users: VecDeque<Inbox>,
    others: VecDeque<Inbox>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.others.is_empty()
    }

    pub(super) fn add(&mut self, message: Inbox) {
        match message {
            Inbox::Submit(..) | Inbox::Cancel { .. } | Inbox::QueueSet(..) | Inbox::QueueRemoved(..) => {
                self.users.push_back(message);
            }
            // After this nothing else matters.
            Inbox::Stopped | Inbox::NotRestored(_) => self.users.push_front(message),
            _ => self.others.push_back(message),
        }
    }

    /// Takes the next messages; users' messages and others each keep their order. However many users' messages there
    /// are, others get their share.
    pub(super) fn take(&mut self) -> Vec<Inbox> {
        let users = self.users.drain(..self.users.len().min(USERS_BATCH));
        let mut taken: Vec<Inbox> = users.collect();
        let others = self.others.len().min(BATCH - taken.len());
        taken.extend(self.others.drain(..others));
        taken
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn cancel(id: u64) -> Inbox {
        Inbox::Cancel { id, tasks: Vec::new(), reply: oneshot::channel().0 }
    }

    /// The cancelled jobs, and the number of other messages.
    fn taken(queue: &mut Queue) -> (Vec<u64>, usize) {
        let taken = queue.take();
        let id = |message: &Inbox| match message {
            Inbox::Cancel { id, .. } => Some(*id),
            _ => None,
        };
        let ids: Vec<u64> = taken.iter().filter_map(id).collect();
        let others = taken.len() - ids.len();
        (ids, others)
    }

    #[test]
    fn a_user_does_not_wait_for_what_nodes_have_said_before() {
        let mut queue = Queue::default();
        (0..100_000).for_each(|number| queue.add(Inbox::NodeLost(format!("node-{number}"))));
        queue.add(cancel(1));
        queue.add(cancel(2));
        assert_eq!(taken(&mut queue), (vec![1, 2], BATCH - 2));
        assert_eq!(taken(&mut queue), (vec![], BATCH));
    }

    #[test]
    fn a_user_who_settles_comes_behind_what_nodes_have_said() {
        let mut queue = Queue::default();
        (0..BATCH).for_each(|number| queue.add(Inbox::NodeLost(format!("node-{number}"))));
        queue.add(Inbox::Settle(oneshot::channel().0));
        let settles = |taken: Vec<Inbox>| taken.into_iter().filter(|of| matches!(of, Inbox::Settle(_))).count();
        assert_eq!([settles(queue.take()), settles(queue.take())], [0, 1]);
    }

    #[test]
    fn nodes_are_heard_however_much_users_want() {
        let mut queue = Queue::default();
        (0..1000).for_each(|id| queue.add(cancel(id)));
        queue.add(Inbox::NodeLost("node".to_owned()));
        let (ids, others) = taken(&mut queue);
        assert_eq!((ids.len(), others), (USERS_BATCH, 1));
        let (mut ids, mut left) = (ids, Vec::new());
        while !queue.is_empty() {
            left.extend(taken(&mut queue).0);
        }
        ids.extend(left);
        assert_eq!(ids, (0..1000).collect::<Vec<u64>>(), "in their order");
    }
}
