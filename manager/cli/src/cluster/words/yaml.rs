//! Reads a job's words from YAML. Every value is read from its text, as the option of the command line is.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::values::{Pair, value_of};
use super::{Indices, JobWords};
use crate::error::{Failure, Result, exit};

/// Words are said to be meant from this likeness on, which is the one that options have (clap).
const LIKENESS_MIN: f64 = 0.7;

/// The words in `text`, which messages call `file`.
pub(crate) fn read(text: &str, file: &str) -> Result<JobWords> {
    let options = serde_saphyr::options! { leading_zero_numbers_as_strings: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| refusal(&error, file))
}

fn refusal(error: &serde_saphyr::Error, file: &str) -> Failure {
    let place = error.location().map(|place| format!(":{}:{}", place.line(), place.column())).unwrap_or_default();
    let failure = |problem: String| Failure::new(format!("{file}{place}: {problem}")).exit(exit::USAGE);
    if let serde_saphyr::Error::SerdeUnknownField { field, expected, .. } = error {
        let failure = failure(format!("there is no key {field:?}"));
        return failure.hint(match nearest(field, expected) {
            Some(word) => format!("did you mean {word:?}? `aliquot submit --schema` prints all keys"),
            None => "`aliquot submit --help` explains all options, which are the keys".to_owned(),
        });
    }
    let text = error.to_string();
    // The place is already told.
    let problem = text.split_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
    failure(problem.to_owned()).hint("the keys of a file are the names of the options: aliquot submit --schema")
}

/// The word that is most like `field`.
fn nearest<'a>(field: &str, words: &[&'a str]) -> Option<&'a str> {
    let field = field.to_lowercase().replace('_', "-");
    let likeness = |word: &&str| strsim::jaro_winkler(&field, word);
    words
        .iter()
        .copied()
        .filter(|word| likeness(word) > LIKENESS_MIN)
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

/// One value; null is none.
pub(super) fn one<'de, D, T>(deserializer: D) -> std::result::Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| value_of(&text).map_err(D::Error::custom)).transpose()
}

/// One value, or a list of them; null is none.
pub(super) fn many<'de, D, T>(deserializer: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    deserializer.deserialize_any(Many(PhantomData))
}

/// Indices in one text, or in a list.
pub(super) fn joined<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Indices>, D::Error> {
    let parts: Vec<String> = many(deserializer)?;
    match parts.is_empty() {
        true => Ok(None),
        false => value_of(&parts.join(",")).map(Some).map_err(D::Error::custom),
    }
}

/// The entries of a mapping.
pub(super) fn pairs<'de, D: Deserializer<'de>, T: Pair>(deserializer: D) -> std::result::Result<Vec<T>, D::Error> {
    deserializer.deserialize_map(Pairs(PhantomData))
}

struct Many<T>(PhantomData<T>);

impl<'de, T: FromStr<Err: fmt::Display>> Visitor<'de> for Many<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values; in quotes, where it looks like a fraction or is true or false")
    }

    fn visit_unit<E: Error>(self) -> std::result::Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_str<E: Error>(self, text: &str) -> std::result::Result<Vec<T>, E> {
        value_of(text).map(|value| vec![value]).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> std::result::Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> std::result::Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Vec<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<Parsed<T>>()? {
            values.push(value.0);
        }
        Ok(values)
    }
}

/// A value in a list.
struct Parsed<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Parsed<T>, D::Error> {
        value_of(&String::deserialize(deserializer)?).map(Parsed).map_err(D::Error::custom)
    }
}

struct Pairs<T>(PhantomData<T>);

impl<'de, T: Pair> Visitor<'de> for Pairs<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of names to values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Vec<T>, A::Error> {
        let mut pairs: Vec<T> = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Option<String>>()? {
            if pairs.iter().any(|pair| pair.key() == key) {
                return Err(A::Error::custom(format!("{key:?} is there twice")));
            }
            pairs.push(T::of_entry(key, value).map_err(A::Error::custom)?);
        }
        Ok(pairs)
    }
}
