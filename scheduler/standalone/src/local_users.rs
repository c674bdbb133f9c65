//! Names and numbers of the users of the scheduler's machine.
//!
//! The list of users may be a directory on the network, and a look-up there may take minutes. So each one has a thread
//! of its own. Those who wait for it hold no lock, and no thread that serves nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::access::LocalUser;
use crate::grants;

/// The most names that are kept.
const NAMES_MAX: usize = 10_000;
/// The most look-ups at a time.
const LOOK_UPS_MAX: usize = 16;

/// The machine's list of users. Each call may block.
pub(crate) trait Directory: std::fmt::Debug + Send + Sync {
    /// The name of a user; `None`: the user has none.
    ///
    /// # Errors
    /// If the list cannot be read now.
    fn name_of(&self, uid: u32) -> Result<Option<String>, String>;

    /// The number of the local user as whom jobs run; see [`grants::number_for_jobs`].
    fn number_for_jobs(&self, user: &LocalUser) -> Result<u32, String>;
}

/// The list of this machine.
#[derive(Debug)]
struct Machine;

impl Directory for Machine {
    fn name_of(&self, uid: u32) -> Result<Option<String>, String> {
        grants::name_of(uid)
    }

    fn number_for_jobs(&self, user: &LocalUser) -> Result<u32, String> {
        grants::number_for_jobs(user)
    }
}

/// Looks up local users, without blocking. Clones share what they know.
#[derive(Clone, Debug)]
pub(crate) struct LocalUsers {
    directory: Arc<dyn Directory>,
    names: Arc<Mutex<BTreeMap<u32, Name>>>,
    names_max: usize,
    look_ups: Arc<Semaphore>,
}

#[derive(Clone, Debug)]
enum Name {
    Known(String),
    /// It is being looked up, once for all who wait.
    Asked(watch::Receiver<Option<String>>),
}

impl Default for LocalUsers {
    fn default() -> Self {
        Self::of(Arc::new(Machine), NAMES_MAX)
    }
}

impl LocalUsers {
    /// Looks up in this directory, and keeps this number of names.
    pub(crate) fn of(directory: Arc<dyn Directory>, names_max: usize) -> Self {
        Self { directory, names: Arc::default(), names_max, look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)) }
    }

    /// The name of a user; the number if the user has no name, or if it cannot be looked up now.
    pub(crate) async fn name_of(&self, uid: u32) -> String {
        let mut asked = match self.known_or_asked(uid) {
            Name::Known(name) => return name,
            Name::Asked(asked) => asked,
        };
        let name = asked.wait_for(Option::is_some).await.ok().and_then(|name| name.clone());
        name.unwrap_or_else(|| uid.to_string())
    }

    /// The name of a user; empty: the user has none, or it cannot be looked up now.
    pub(crate) async fn known_name_of(&self, uid: u32) -> String {
        let name = self.name_of(uid).await;
        if name.parse::<u32>().is_ok() { String::new() } else { name }
    }

    /// The name of a user, or what tells it when it was looked up. The look-up goes on although the call ends for which
    /// it was begun, so the calls of one user have no more than one under way.
    fn known_or_asked(&self, uid: u32) -> Name {
        let mut names = self.names.lock();
        if let Some(name) = names.get(&uid) {
            return name.clone();
        }
        let (tell, asked) = watch::channel(None);
        let asked = Name::Asked(asked);
        names.insert(uid, asked.clone());
        drop(names);
        let users = self.clone();
        tokio::spawn(async move {
            let found = users.look_up(move |directory| directory.name_of(uid)).await;
            let name = found.map(|name| name.unwrap_or_else(|| uid.to_string()));
            users.keep(uid, name.clone().ok());
            tell.send_replace(Some(name.unwrap_or_else(|_| uid.to_string())));
        });
        asked
    }

    /// Notes the name of a user. `None`: it could not be looked up, and the next call tries again.
    fn keep(&self, uid: u32, name: Option<String>) {
        let mut names = self.names.lock();
        names.remove(&uid);
        let Some(name) = name else { return };
        if names.len() >= self.names_max {
            let known = names.iter().find(|(_, name)| matches!(name, Name::Known(_))).map(|(uid, _)| *uid);
            known.iter().for_each(|uid| _ = names.remove(uid));
        }
        names.insert(uid, Name::Known(name));
    }

    /// The number of the local user as whom jobs run. It is looked up each time: the user may be another one by now.
    ///
    /// # Errors
    /// If there is no such user on this machine, or it is root by another name.
    pub(crate) async fn number_for_jobs(&self, user: &LocalUser) -> Result<u32, String> {
        match user {
            LocalUser::Number(number) => Ok(*number),
            LocalUser::Name(_) => {
                let user = user.clone();
                self.look_up(move |directory| directory.number_for_jobs(&user)).await
            }
        }
    }

    async fn look_up<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Directory) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let turn = Arc::clone(&self.look_ups).acquire_owned().await.map_err(|error| error.to_string())?;
        let directory = Arc::clone(&self.directory);
        let found = tokio::task::spawn_blocking(move || {
            let found = look(&*directory);
            drop(turn);
            found
        });
        found.await.map_err(|error| error.to_string())?
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    /// A directory that says nothing about the user 1 until it is let go. Asked on the thread that serves, it fails, so
    /// that a test does not wait for ever.
    #[derive(Debug)]
    pub(crate) struct Stalls {
        serving: ThreadId,
        asked: UnboundedSender<u32>,
        until: Mutex<mpsc::Receiver<()>>,
    }

    impl Directory for Stalls {
        fn name_of(&self, uid: u32) -> Result<Option<String>, String> {
            self.asked.send(uid).unwrap();
            self.is_served()?;
            if uid == 1 {
                // The test ends this by dropping the other end.
                _ = self.until.lock().recv();
            }
            Ok(Some(format!("user-{uid}")))
        }

        fn number_for_jobs(&self, _: &LocalUser) -> Result<u32, String> {
            self.is_served().map(|()| 7)
        }
    }

    impl Stalls {
        fn is_served(&self) -> Result<(), String> {
            let is_aside = thread::current().id() != self.serving;
            is_aside.then_some(()).ok_or_else(|| "nothing is served meanwhile".to_owned())
        }
    }

    /// Users in such a directory, the users that it was asked about, and what lets it go when it is dropped.
    pub(crate) fn stalling() -> (LocalUsers, UnboundedReceiver<u32>, mpsc::Sender<()>) {
        let ((asked, asks), (go, until)) = (unbounded_channel(), mpsc::channel());
        let directory = Stalls { serving: thread::current().id(), asked, until: Mutex::new(until) };
        (LocalUsers::of(Arc::new(directory), 2), asks, go)
    }

    pub(crate) fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn a_look_up_that_stalls_holds_up_nobody_else() {
        runtime().block_on(async {
            let (users, mut asks, go) = stalling();
            let wait = |users: LocalUsers| tokio::spawn(async move { users.name_of(1).await });
            let gives_up = wait(users.clone());
            assert_eq!(asks.recv().await, Some(1), "it is being looked up");
            assert_eq!(users.name_of(2).await, "user-2");
            assert_eq!(users.number_for_jobs(&LocalUser::Name("ada".to_owned())).await, Ok(7));
            gives_up.abort();
            let stays = wait(users.clone());
            tokio::task::yield_now().await;
            drop(go);
            assert_eq!(stays.await.unwrap(), "user-1");
            assert_eq!((users.name_of(1).await, users.name_of(2).await), ("user-1".into(), "user-2".into()));
            assert_eq!((asks.recv().await, asks.try_recv().ok()), (Some(2), None), "each was looked up once");
        });
    }

    #[test]
    fn a_bounded_number_of_names_is_kept() {
        runtime().block_on(async {
            let (users, _asks, _go) = stalling();
            for uid in 10..20 {
                assert_eq!(users.name_of(uid).await, format!("user-{uid}"));
                assert!(users.names.lock().len() <= 2, "{:?}", users.names.lock());
            }
        });
    }

    /// A directory that cannot be reached the first time.
    #[derive(Debug)]
    struct Comes(Mutex<u32>);

    impl Directory for Comes {
        fn name_of(&self, _: u32) -> Result<Option<String>, String> {
            *self.0.lock() += 1;
            if *self.0.lock() == 1 { Err("not reached".to_owned()) } else { Ok(Some("ada".to_owned())) }
        }

        fn number_for_jobs(&self, _: &LocalUser) -> Result<u32, String> {
            Err("not reached".to_owned())
        }
    }

    #[test]
    fn what_could_not_be_looked_up_is_tried_again() {
        runtime().block_on(async {
            let users = LocalUsers::of(Arc::new(Comes(Mutex::new(0))), 2);
            assert_eq!((users.name_of(9).await, users.name_of(9).await), ("9".into(), "ada".into()));
            let users = LocalUsers::of(Arc::new(Comes(Mutex::new(0))), 2);
            assert_eq!((users.known_name_of(9).await, users.known_name_of(9).await), (String::new(), "ada".into()));
            assert!(users.number_for_jobs(&LocalUser::Name("ada".to_owned())).await.is_err());
        });
    }
}
