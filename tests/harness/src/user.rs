//! Other users of the machine.

use std::thread;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Does `work` in a separate thread as user and group `id`, without root's rights. The test must be run by root.
pub fn as_user<T: Send>(id: u32, work: impl FnOnce() -> T + Send) -> T {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let become_user = || {
        // The kernel has user and group ids for each thread; only the C library's functions change the whole process.
        set_thread_groups(&[]).expect("no further groups");
        let (group, user) = (Gid::from_raw(id), Uid::from_raw(id));
        set_thread_res_gid(group, group, group).expect("another group");
        set_thread_res_uid(user, user, user).expect("another user");
        work()
    };
    thread::scope(|scope| scope.spawn(become_user).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
