//! The values of a job's words. Each is read from text, on the command line as in files.

use std::env;
use std::fmt::Display;
use std::str::FromStr;

use aliquot_proto::scheduler::v1::{Mount, SecretUse};
use aliquot_proto::secret::{is_secret_name, is_secret_variable};

use crate::error::{Failure, Result, exit};

/// Text that says something: names and paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn into_string(self) -> String {
        self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Text {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Text, String> {
        match text.is_empty() {
            true => Err("it is empty; leave it out, or write a name".to_owned()),
            false => Ok(Text(text.to_owned())),
        }
    }
}

/// A number of which there is at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(u32);

impl Count {
    pub(crate) fn count(self) -> u32 {
        self.0
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Count, String> {
        match text.parse() {
            Ok(count @ 1..) => Ok(Count(count)),
            _ => Err(format!("{text:?} is no count; write a whole number from 1, such as 4")),
        }
    }
}

/// How often; may be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times(u32);

impl Times {
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Times, String> {
        text.parse().map(Times).map_err(|_| format!("{text:?} is no count; write a whole number from 0, such as 3"))
    }
}

/// The place of a job in its queue, or of a queue among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Priority(i32);

impl Priority {
    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Priority, String> {
        text.parse().map(Priority).map_err(|_| {
            format!("{text:?} is no priority; write a whole number, such as 100 or -5; the greater goes first")
        })
    }
}

/// The id of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobId(u64);

impl JobId {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<JobId, String> {
        match text.parse() {
            Ok(id @ 1..) => Ok(JobId(id)),
            _ => Err(format!("{text:?} is no job; write its number, such as 17: `aliquot jobs` shows them")),
        }
    }
}

/// A directory of the node, and where a container sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountWord {
    source: String,
    /// Empty: the same as on the node.
    target: String,
    read_only: bool,
}

impl MountWord {
    pub(crate) fn into_mount(self) -> Mount {
        Mount { source: self.source, target: self.target, read_only: self.read_only }
    }
}

impl FromStr for MountWord {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<MountWord, String> {
        let wrong = || {
            format!(
                "{text:?} is no mount; write DIR, DIR:WHERE or DIR:WHERE:ro, with paths from the root, such as /data:/data:ro"
            )
        };
        let (paths, read_only) = match text.strip_suffix(":ro") {
            Some(paths) => (paths, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        let (source, target) = paths.split_once(':').unwrap_or((paths, ""));
        let is_path = |path: &str| path.starts_with('/') && !path.contains([':', ',']);
        let is_right =
            (is_path(source) || source == "~") && (is_path(target) || (target.is_empty() && !paths.ends_with(':')));
        match is_right {
            true => Ok(MountWord { source: source.to_owned(), target: target.to_owned(), read_only }),
            false => Err(wrong()),
        }
    }
}

/// A secret, and the variable that has its value too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretWord {
    name: String,
    /// Empty: none.
    variable: String,
}

impl SecretWord {
    pub(crate) fn into_use(self) -> SecretUse {
        SecretUse { name: self.name, variable: self.variable }
    }
}

impl FromStr for SecretWord {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<SecretWord, String> {
        let (name, variable) = text.split_once(':').map_or((text, None), |(name, variable)| (name, Some(variable)));
        match is_secret_name(name) && variable.is_none_or(is_secret_variable) {
            true => Ok(SecretWord { name: name.to_owned(), variable: variable.unwrap_or_default().to_owned() }),
            false => Err(format!(
                "{text:?} is no secret; write NAME or NAME:VARIABLE, such as hf-token:HF_TOKEN; `aliquot secrets` shows the names"
            )),
        }
    }
}

/// Whether a task whose node is lost, or that is evicted, starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    /// It starts anew.
    Always,
    /// It has failed.
    Never,
}

impl FromStr for Restart {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Restart, String> {
        match text {
            "always" => Ok(Restart::Always),
            "never" => Ok(Restart::Never),
            _ => Err(format!("{text:?} is not known; write always or never")),
        }
    }
}

/// A key with its value, which in files is an entry of a mapping.
pub(crate) trait Pair: Sized {
    /// The pair of a mapping's entry; `None` for null.
    fn of_entry(key: String, value: Option<String>) -> std::result::Result<Self, String>;

    fn key(&self) -> &str;
}

/// A variable for the job's environment: its value, or that of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    name: String,
    value: Option<String>,
}

impl Variable {
    /// The name and the value.
    pub(crate) fn resolve(self) -> Result<(String, String)> {
        let name = self.name;
        let failed = |problem: &str| {
            Failure::new(format!("the value of variable {name:?} cannot be passed on: {problem}"))
                .hint(format!("set the variable, or give its value: --env {name}=VALUE"))
                .exit(exit::USAGE)
        };
        match self.value.map_or_else(|| env::var(&name), Ok) {
            Ok(value) => Ok((name, value)),
            Err(env::VarError::NotPresent) => Err(failed("it is not set here")),
            Err(env::VarError::NotUnicode(_)) => Err(failed("its value is not UTF-8")),
        }
    }
}

impl Pair for Variable {
    fn of_entry(name: String, value: Option<String>) -> std::result::Result<Variable, String> {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        if !is_name || value.as_ref().is_some_and(|value| value.contains('\0')) {
            return Err(format!("{name:?} is no variable; write NAME=VALUE, or NAME for the value that it has here"));
        }
        Ok(Variable { name, value })
    }

    fn key(&self) -> &str {
        &self.name
    }
}

/// A label that a node must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    key: String,
    value: String,
}

impl Label {
    pub(crate) fn into_pair(self) -> (String, String) {
        (self.key, self.value)
    }
}

impl Pair for Label {
    fn of_entry(key: String, value: Option<String>) -> std::result::Result<Label, String> {
        match value {
            Some(value) if !key.is_empty() => Ok(Label { key, value }),
            _ => Err(format!("{key:?} is no label; write KEY=VALUE, such as zone=a")),
        }
    }

    fn key(&self) -> &str {
        &self.key
    }
}

/// A taint that is tolerated: its key, and its value if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    key: String,
    value: String,
}

impl Key {
    pub(crate) fn into_pair(self) -> (String, String) {
        (self.key, self.value)
    }
}

impl Pair for Key {
    fn of_entry(key: String, value: Option<String>) -> std::result::Result<Key, String> {
        match key.is_empty() {
            true => Err("the key is empty; write KEY=VALUE, such as dedicated=research".to_owned()),
            false => Ok(Key { key, value: value.unwrap_or_default() }),
        }
    }

    fn key(&self) -> &str {
        &self.key
    }
}

fn pair_of_text<T: Pair>(text: &str) -> std::result::Result<T, String> {
    match text.split_once('=') {
        Some((key, value)) => T::of_entry(key.to_owned(), Some(value.to_owned())),
        None => T::of_entry(text.to_owned(), None),
    }
}

macro_rules! pairs_are_read_from_text {
    ($($pair:ty),*) => {$(
        impl FromStr for $pair {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<$pair, String> {
                pair_of_text(text)
            }
        }
    )*};
}

pairs_are_read_from_text!(Variable, Label, Key);

/// Reads a value. The error is the text for messages.
pub(super) fn value_of<T: FromStr<Err: Display>>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}
