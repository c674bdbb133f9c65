//! Other users of the machine.

use std::thread;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Does `work` as the user and the group `id`, without any right of root's, in a thread of its own. The test must be
/// run by root.
pub fn as_user<T: Send>(id: u32, work: impl FnOnce() -> T + Send) -> T {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let become_user = || {
        // The kernel keeps them thread by thread, and only the C library makes them the whole process's.
        set_thread_groups(&[]).expect("no further groups");
        let (group, user) = (Gid::from_raw(id), Uid::from_raw(id));
        set_thread_res_gid(group, group, group).expect("another group");
        set_thread_res_uid(user, user, user).expect("another user");
        work()
    };
    thread::scope(|scope| scope.spawn(become_user).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
