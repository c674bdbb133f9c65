//! Command line of the chaos test: see the library.
//!
//! ```text
//! cargo run --release -p aliquot-chaos -- --chaos 3h
//! cargo run --release -p aliquot-chaos -- --seed 7 --first-round 12 --rounds 1     repeats one round
//! cargo run --release -p aliquot-chaos -- --fault "manager killed" --rounds 20
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_chaos::{Campaign, Length, fault_names, run};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};

/// Injects faults of every kind into a node with a simulated GPU, and reports violations
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Length of the run, for example 3h, 20m or 90s [default: each fault once]
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "rounds")]
    chaos: Option<Duration>,
    /// Number of rounds
    #[arg(long)]
    rounds: Option<u64>,
    /// Seed of all pseudo-random decisions [default: a new one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of the first round, to repeat a round of an earlier run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    first_round: u64,
    /// Inject only faults whose names contain this text
    #[arg(long, value_name = "NAME", default_value = "")]
    fault: String,
    /// Do not judge shares of device time, for a machine with much other load
    #[arg(long)]
    no_shares: bool,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.chars().last().ok_or("empty")?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return Err("it ends with none of the units s, m and h".into()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|error| format!("{error}; write for example 3h"))?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

/// A flag that becomes true when SIGINT or SIGTERM arrives, so that the run ends in order and leaves no process behind.
fn end_by_signal() -> Arc<AtomicBool> {
    let end = Arc::new(AtomicBool::new(false));
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    // Before any other thread starts, so that every thread blocks these signals.
    if let Err(error) = signals.thread_block() {
        eprintln!("signals cannot be waited for: {error}");
        return end;
    }
    let asked = Arc::clone(&end);
    thread::spawn(move || {
        if signals.wait().is_ok() {
            eprintln!("ending after this round");
            asked.store(true, Ordering::SeqCst);
        }
    });
    end
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 % 1_000_000
    });
    let length = match (args.chaos, args.rounds) {
        (Some(time), _) => Length::Time(time),
        (None, Some(rounds)) => Length::Rounds(rounds),
        (None, None) => Length::RoundsOfEach(1),
    };
    if !fault_names().iter().any(|name| name.contains(&args.fault)) {
        eprintln!("no fault has {:?} in its name; there are: {}", args.fault, fault_names().join(", "));
        return ExitCode::from(2);
    }
    println!("seed {seed}");
    let end = end_by_signal();
    let campaign = Campaign {
        first_round: args.first_round,
        only: args.fault,
        judges_shares: !args.no_shares,
        end,
        ..Campaign::new(seed, length)
    };
    let report = run(&campaign);
    if args.json {
        println!("{:#}", report.json());
    } else {
        println!("\n{}\n{}", report.summary(), report.table());
        for found in &report.violations {
            println!("round {} ({}), after {:.0?}: {}", found.round, found.fault, found.after, found.what);
        }
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("3h"), Ok(Duration::from_secs(10_800)));
        assert_eq!(duration("20m"), Ok(Duration::from_secs(1200)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        for text in ["", "3", "h", "-1h", "3 h", "3d", "é"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
