//! The end of a program at a panic in any of its threads.

use std::{panic, process};

/// Makes every panic end the whole process, after it was reported. The release profile does so by itself. In a profile
/// that unwinds, the other threads would go on without the one that panicked.
pub fn end_at_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::{env, thread};

    #[test]
    fn a_panic_of_any_thread_ends_the_process() {
        let child = "daemon::crash::tests::a_thread_that_panics";
        let program = env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", child, "--ignored", "--nocapture"]).output().unwrap();
        let reported = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{:?}: {reported}", ended.status);
        assert!(reported.contains("nobody expected this"), "{reported}");
    }

    #[test]
    #[ignore = "ends the process: started by the test before it"]
    fn a_thread_that_panics() {
        super::end_at_panics();
        let _ = thread::spawn(|| panic!("nobody expected this")).join();
    }
}
