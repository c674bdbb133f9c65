//! `aliquot`: exact parts of a GPU, from the command line.
//!
//! A client of the node manager, and in [`cluster`] of the scheduler. [`args`] defines the commands, and each command
//! has a file. [`client`] connects to any [`server`]; [`embedded`] is the manager of a run on a machine without a
//! running one. [`quantity`] is the one place where quantities are parsed. [`output`] is the one that prints: a macro of
//! the standard library panics if nobody reads.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod args;
mod bar;
mod checkout;
mod client;
mod cluster;
mod completion;
mod consumers;
mod deadline;
mod demo;
mod describe;
mod dev;
mod device_work;
mod doctor;
mod embedded;
mod error;
mod events;
mod exec;
mod findings;
mod json;
mod load;
mod moment;
mod nodes;
mod output;
mod parts;
mod past;
mod priority;
mod ps;
mod quantity;
mod run;
mod server;
mod shorten;
mod simulated;
mod slice;
mod top;
mod user;
mod visible;
mod waits;

use std::ffi::OsString;
use std::process::ExitCode;

use aliquot_terminal::table;
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use error::{Failure, Result, exit};

fn main() -> ExitCode {
    aliquot_manager::daemon::end_at_panics();
    completion::answer();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => return usage(&refusal),
    };
    let is_run = match &cli.command {
        Command::Run(_) | Command::Exec(_) | Command::Attach(_) => true,
        Command::Submit(args) => args.wait,
        _ => false,
    };
    deadline::set(cli.timeout);
    match dispatch(cli) {
        Ok(code) => code,
        Err(failure) => {
            let failure = if is_run { run::own_failure(failure) } else { failure };
            output::say(shorten::arguments(&failure.to_string(), std::env::args_os()));
            failure.code()
        }
    }
}

fn dispatch(mut cli: Cli) -> Result<ExitCode> {
    let wrong = |why| Failure::new(why).exit(exit::USAGE);
    let (socket, scheduler) = (cli.named_socket().map_err(wrong)?, cli.named_scheduler().map_err(wrong)?);
    let (socket, scheduler) = (socket.as_deref(), scheduler.as_deref());
    match &cli.command {
        Command::Run(args) => return run::run(socket, args),
        Command::Exec(args) => {
            return match args.job() {
                Some(task) => cluster::exec::exec(scheduler, task, args),
                None => exec::exec(socket, args),
            };
        }
        Command::Attach(args) => return cluster::attach::attach(scheduler, args),
        Command::Demo(args) => return demo::demo(socket, args),
        Command::Dev(args) => return dev::dev(args),
        Command::Submit(args) => return cluster::submit::submit(scheduler, args),
        Command::DemoWorker(args) => return Ok(demo::work(args)),
        Command::Doctor(args) => return doctor::doctor(socket, args),
        Command::DoctorProbe => doctor::probe()?,
        Command::Load(args) => load::load(args)?,
        Command::Top(args) => top::top(socket, args)?,
        Command::Events(args) => client::runtime()?.block_on(events::events(socket, args))?,
        Command::Completions(args) => output::print(&completion::script(args.shell)?)?,
        Command::Slice(command) => client::runtime()?.block_on(slice::slice(socket, command))?,
        Command::Ps(args) => client::runtime()?.block_on(ps::ps(socket, args))?,
        Command::Describe(args) => client::runtime()?.block_on(describe::describe(socket, args))?,
        Command::Jobs(args) => client::runtime()?.block_on(cluster::jobs::jobs(scheduler, args))?,
        Command::Job(args) => client::runtime()?.block_on(cluster::job::job(scheduler, args))?,
        Command::Logs(args) => client::runtime()?.block_on(cluster::logs::logs(scheduler, args))?,
        Command::PortForward(args) => {
            client::runtime()?.block_on(cluster::port_forward::port_forward(scheduler, args))?;
        }
        Command::Cancel(args) => client::runtime()?.block_on(cluster::cancel::cancel(scheduler, args))?,
        Command::Explain(args) => client::runtime()?.block_on(cluster::explain::explain(scheduler, args))?,
        Command::Queues(args) => client::runtime()?.block_on(cluster::queues::queues(scheduler, args))?,
        Command::Nodes(args) => client::runtime()?.block_on(cluster::nodes::nodes(socket, scheduler, args))?,
        Command::Token(args) => client::runtime()?.block_on(cluster::token::token(scheduler, args))?,
        Command::Secrets(args) => client::runtime()?.block_on(cluster::secrets::secrets(scheduler, args))?,
        Command::Users(args) => client::runtime()?.block_on(cluster::users::users(scheduler, args))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Handles a command line that asks for help or is wrong.
fn usage(refusal: &clap::Error) -> ExitCode {
    shorten::print(refusal);
    match refusal.use_stderr() {
        false => ExitCode::SUCCESS,
        true if asks_to_run(std::env::args_os()) => exit::RUN_FAILED.into(),
        true => exit::USAGE.into(),
    }
}

/// Whether a command line that is otherwise wrong is one of `aliquot run`, `exec`, `attach` or `submit --wait`,
/// whose own failures have a separate exit code.
fn asks_to_run(args: impl Iterator<Item = OsString>) -> bool {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(args);
    matches.is_ok_and(|matches| match matches.subcommand() {
        Some(("run" | "exec" | "attach", _)) => true,
        Some(("submit", submit)) => submit.get_flag("wait"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_option_is_not_taken_for_the_command() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        for wrong in [
            "aliquot run --gpu-cor 30 -- true",
            "aliquot run --gpu-core 30 --bogus true",
            "aliquot exec train --bogus true",
            "aliquot submit --bogus true",
        ] {
            let refused = parse(wrong).expect_err(wrong);
            assert_eq!(refused.kind(), clap::error::ErrorKind::UnknownArgument, "{wrong}: {refused}");
        }
        for right in
            ["aliquot run --gpu-core 30 prog -x --gpu-core 5", "aliquot run --gpu-core 30 -- prog -x --gpu-core 5"]
        {
            let Command::Run(args) = parse(right).expect(right).command else { panic!("{right} is another command") };
            assert_eq!(args.command, ["prog", "-x", "--gpu-core", "5"], "{right}");
        }
        assert!(parse("aliquot exec train -- --odd").is_ok(), "after two dashes anything is a command");
    }

    #[test]
    fn a_run_with_wrong_options_is_still_a_run() {
        let asks = |words: &str| asks_to_run(words.split(' ').map(OsString::from));
        assert!(asks("aliquot run --gpu-core 0 -- true"));
        assert!(asks("aliquot --socket /x run --bogus"));
        assert!(asks("aliquot exec train --bogus"));
        assert!(!asks("aliquot slice create run --gpu-core 0"));
        assert!(asks("aliquot submit --wait --bogus -- true"));
        assert!(!asks("aliquot submit --bogus -- true --wait"));
        assert!(!asks("aliquot"));
    }
}
