//! How a live scheduler decides, as its operator says it in options or in a configuration file.

use aliquot_scheduler_core::Settings;
use aliquot_scheduler_core::placement::Mix;
use aliquot_scheduler_engine::{Decisions, Snapshots};
use aliquot_standalone::config::Config;

use crate::past_usage;
use crate::policy::PolicyName;
use crate::snapshot::File;

/// The half-life of past usage, in milliseconds, if the operator names none: a week.
const USAGE_HALF_LIFE_MS: u64 = 168 * 3_600_000;

/// How a live scheduler decides. What is not given has the default that its text names.
#[derive(clap::Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecisionArgs {
    /// Placement policy [default: default]
    #[arg(long, value_enum)]
    policy: Option<PolicyName>,
    /// How strongly it counts against a queue what it has had lately, when what the quotas leave is divided. 0: not at
    /// all. With 1, a queue that has had twice its part by weight is given nothing beyond its quota while others ask
    /// for it [default: 0]
    #[arg(long, value_name = "NUMBER", value_parser = past_usage::weight)]
    usage_weight: Option<u64>,
    /// Time after which what a queue has had counts half, for example 12h [default: 168h]
    #[arg(long, value_name = "TIME", value_parser = past_usage::half_life_ms)]
    usage_half_life: Option<u64>,
}

impl DecisionArgs {
    /// These options; in place of those that are not given, the keys of the configuration.
    ///
    /// # Errors
    /// A sentence with a key whose value cannot be read, and the value.
    pub fn or(self, config: &Config) -> Result<Self, String> {
        let policy = key("policy", config.policy.as_deref(), PolicyName::named)?;
        let usage_weight = key("usage_weight", config.usage_weight.as_deref(), past_usage::weight)?;
        let usage_half_life = key("usage_half_life", config.usage_half_life.as_deref(), past_usage::half_life_ms)?;
        Ok(Self {
            policy: self.policy.or(policy),
            usage_weight: self.usage_weight.or(usage_weight),
            usage_half_life: self.usage_half_life.or(usage_half_life),
        })
    }

    /// The policy and the settings of a live scheduler.
    #[must_use]
    pub fn decisions(&self) -> Decisions {
        let policy = self.policy().make(&Mix::of([]), 0);
        Decisions { policy, settings: self.settings(), usage_half_life_ms: self.usage_half_life_ms() }
    }

    /// Writes snapshots of what a scheduler with these decisions knows.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        let (policy, settings) = (self.policy(), self.settings());
        Snapshots::new(move |view| {
            let text = File::of_view(view, policy, &settings).and_then(|file| file.render());
            text.map_err(|error| format!("{error:#}"))
        })
    }

    fn policy(&self) -> PolicyName {
        self.policy.unwrap_or_default()
    }

    fn settings(&self) -> Settings {
        Settings { usage_weight: self.usage_weight.unwrap_or(0), ..Settings::default() }
    }

    fn usage_half_life_ms(&self) -> u64 {
        self.usage_half_life.unwrap_or(USAGE_HALF_LIFE_MS)
    }
}

/// The value of a key of the configuration; `None`: the key is not set.
fn key<T>(name: &str, text: Option<&str>, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    text.map(|text| read(text).map_err(|why| format!("{name} {text:?}: {why}"))).transpose()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        decisions: DecisionArgs,
    }

    fn options(words: &[&str]) -> DecisionArgs {
        Arguments::try_parse_from(["program"].iter().chain(words)).unwrap().decisions
    }

    fn configured(policy: &str, usage_weight: &str, usage_half_life: &str) -> Config {
        let [policy, usage_weight, usage_half_life] =
            [policy, usage_weight, usage_half_life].map(|text| Some(text.to_owned()));
        Config { policy, usage_weight, usage_half_life, ..Config::default() }
    }

    #[test]
    fn options_win_over_the_configuration() {
        let config = configured("best-fit", "0.5", "12h");
        let of_file = options(&[]).or(&config).unwrap();
        assert_eq!(of_file, options(&["--policy=best-fit", "--usage-weight=0.5", "--usage-half-life=12h"]));
        assert_eq!((of_file.policy(), of_file.settings().usage_weight), (PolicyName::BestFit, 500));
        assert_eq!(of_file.decisions().usage_half_life_ms, 12 * 3_600_000);
        let given = options(&["--policy=fgd", "--usage-weight=2", "--usage-half-life=1h"]);
        assert_eq!(given.or(&config), Ok(given));
        let one_given = options(&["--usage-weight=2"]).or(&config).unwrap();
        assert_eq!((one_given.policy(), one_given.settings().usage_weight), (PolicyName::BestFit, 2000));
    }

    #[test]
    fn the_help_and_the_example_tell_the_defaults() {
        let help = Arguments::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let example = include_str!("../../deploy/config/scheduler.toml");
        let texts = ["default", "0", "168h"];
        for (key, text) in ["policy", "usage_weight", "usage_half_life"].into_iter().zip(texts) {
            assert!(help.contains(&format!("[default: {text}]")), "{help}");
            assert!(example.contains(&format!("\n#= {key} = {text:?}\n")), "{key}");
        }
        let [policy, usage_weight, usage_half_life] = texts;
        let said = options(&[]).or(&configured(policy, usage_weight, usage_half_life)).unwrap();
        let unsaid = options(&[]).or(&Config::default()).unwrap();
        let all = |of: DecisionArgs| (of.policy(), of.settings(), of.usage_half_life_ms());
        assert_eq!(all(said), all(unsaid));
        assert_eq!(unsaid, DecisionArgs::default());
    }

    #[test]
    fn a_wrong_key_is_named_with_its_value() {
        for (config, words) in [
            (configured("best", "0", "1h"), "policy \"best\": it must be one of default, fgd, best-fit, "),
            (configured("Spread", "0", "1h"), "policy \"Spread\": "),
            (configured("fgd", "-1", "1h"), "usage_weight \"-1\": it must be a number from 0 to 1000"),
            (configured("fgd", "0", "7"), "usage_half_life \"7\": it must be a time"),
        ] {
            // Options do not hide it.
            let given: [&[&str]; 2] = [&[], &["--policy=fgd", "--usage-weight=2", "--usage-half-life=1h"]];
            for given in given {
                let why = options(given).or(&config).unwrap_err();
                assert!(why.starts_with(words), "{why}");
            }
        }
    }
}
