//! Lists of sentences.

use crate::look::Look;
use crate::table::{self, printable};

/// The sentences as a list: each after a dash, on lines of its own.
#[must_use]
pub fn points(sentences: &[String], look: Look) -> String {
    sentences.iter().map(|sentence| point(&printable(sentence), look.width)).collect()
}

/// A sentence after a dash. On a terminal its further lines are indented like the first.
fn point(sentence: &str, width: Option<usize>) -> String {
    const DASH: &str = "- ";
    let width_max = width.map_or(usize::MAX, |width| width.saturating_sub(DASH.len()).max(20));
    let (mut lines, mut line): (Vec<String>, String) = (Vec::new(), String::new());
    for word in sentence.split(' ') {
        if !line.is_empty() && table::width(&line) + 1 + table::width(word) > width_max {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    format!("{DASH}{}\n", lines.join("\n  "))
}
