//! The plugin's program, as kubectl runs it.

use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

use aliquot_kubectl::{Cli, Failure, Printed, is_asked, reply, run};
use aliquot_terminal::look::Look;
use clap::Parser;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if is_asked(&arguments) {
        print(&reply(&arguments));
        return ExitCode::SUCCESS;
    }
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&Failure::new(format!("cannot start: {error}"))),
    };
    match runtime.block_on(run(&cli, Look::of_stdout())) {
        Ok(Printed { text, notes, exit }) => {
            print(&text);
            for note in notes {
                // Standard error may be closed.
                _ = writeln!(stderr(), "note: {note}");
            }
            ExitCode::from(exit)
        }
        Err(failure) => failed(&failure),
    }
}

/// Prints a text. It is no error if the reader closes the pipe early.
fn print(text: &str) {
    if let Err(error) = stdout().lock().write_all(text.as_bytes())
        && error.kind() != ErrorKind::BrokenPipe
    {
        _ = writeln!(stderr(), "error: cannot write to standard output: {error}");
    }
}

fn failed(failure: &Failure) -> ExitCode {
    _ = writeln!(stderr(), "error: {failure}");
    ExitCode::FAILURE
}
