//! Turns the end of a command into the exit code of `aliquot run`.

use std::io;
use std::process::ExitCode;

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use crate::error::exit;

/// The exit code of a command that exited or was ended by a signal; `None` if it has not ended.
pub(super) fn of_wait(status: WaitStatus) -> Option<ExitCode> {
    match status {
        WaitStatus::Exited(_, code) => Some(ExitCode::from(code as u8)),
        WaitStatus::Signaled(_, signal, _) => Some(of_signal(signal)),
        _ => None,
    }
}

/// The exit code that shells use for a command that was ended by `signal`.
pub(super) fn of_signal(signal: Signal) -> ExitCode {
    exit::of_signal(signal as u8).into()
}

/// The exit code for a command that could not be started.
pub(super) fn of_start_error(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_EXECUTE,
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::Pid;

    use super::*;

    /// [`ExitCode`] can only be compared by its debug text.
    fn shown(code: Option<ExitCode>) -> String {
        format!("{code:?}")
    }

    #[test]
    fn statuses_pass_through() {
        let pid = Pid::from_raw(7);
        for code in [0, 1, 2, 77, 255] {
            assert_eq!(shown(of_wait(WaitStatus::Exited(pid, code))), shown(Some(ExitCode::from(code as u8))));
        }
        assert_eq!(shown(of_wait(WaitStatus::Signaled(pid, Signal::SIGKILL, false))), shown(Some(ExitCode::from(137))));
        assert_eq!(shown(of_wait(WaitStatus::Signaled(pid, Signal::SIGSEGV, true))), shown(Some(ExitCode::from(139))));
        assert_eq!(shown(of_wait(WaitStatus::Stopped(pid, Signal::SIGTSTP))), shown(None));
        assert_eq!(shown(of_wait(WaitStatus::Continued(pid))), shown(None));
    }

    #[test]
    fn a_command_that_does_not_start_is_told_as_shells_do() {
        assert_eq!(of_start_error(&io::ErrorKind::NotFound.into()), 127);
        assert_eq!(of_start_error(&io::ErrorKind::PermissionDenied.into()), 126);
        assert_eq!(of_start_error(&io::Error::from_raw_os_error(libc::ENOEXEC)), 126);
    }
}
