//! Answers for programs.

use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;

/// An answer as YAML, or as JSON in every other format.
pub(crate) fn document(answer: &impl Serialize, format: Format) -> Result<String, Failure> {
    match format {
        Format::Yaml => serde_saphyr::to_string(answer).map_err(|error| Failure::new(error.to_string())),
        _ => serde_json::to_string_pretty(answer)
            .map(|text| text + "\n")
            .map_err(|error| Failure::new(error.to_string())),
    }
}
