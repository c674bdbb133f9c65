//! An agent without a node manager around it, for tests: `agent_alone SETTINGS DIR MANAGER_SOCKET`.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, thread};

use aliquot_agent::settings::Settings;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--supervise", dir] => aliquot_agent::supervise(Path::new(dir)),
        [settings, dir, socket] => {
            tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
            let settings: Settings = toml::from_str(&fs::read_to_string(settings).expect("a file")).expect("settings");
            let (state, runtime) = (Path::new(dir).join("state"), Path::new(dir).join("run"));
            let config =
                settings.completed(&state, &runtime, Path::new(socket), "test-node").expect("settings that work");
            let _agent = aliquot_agent::Running::start(config).expect("an agent");
            loop {
                thread::park();
            }
        }
        _ => ExitCode::FAILURE,
    }
}
