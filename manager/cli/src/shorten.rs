//! Shortens arguments of this program that are repeated in messages.

use std::ffi::OsString;

use clap::error::ErrorKind;

use crate::output;

/// Maximum characters of an argument that are repeated.
const CHARACTERS_MAX: usize = 64;

/// `text`, in which every one of `arguments` that is too long, and every long value in one, is cut.
pub(crate) fn arguments(text: &str, arguments: impl Iterator<Item = OsString>) -> String {
    let mut long: Vec<String> = arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .flat_map(|argument| {
            let value = argument.split_once('=').map(|(_, value)| value.to_owned());
            [Some(argument), value]
        })
        .flatten()
        .filter(|argument| argument.chars().count() > CHARACTERS_MAX)
        .collect();
    // Longest first, so that an argument that contains another one is cut as a whole.
    long.sort_by_key(|argument| std::cmp::Reverse(argument.len()));
    long.iter().fold(text.to_owned(), |text, argument| text.replace(argument.as_str(), &cut(argument)))
}

fn cut(argument: &str) -> String {
    let begin: String = argument.chars().take(CHARACTERS_MAX).collect();
    format!("{begin}… ({} characters)", argument.chars().count())
}

/// Prints the answer to a command line that asks for help or is wrong.
pub(crate) fn print(answer: &clap::Error) {
    if matches!(answer.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // The write fails if the reader is gone; then there is nothing else to do.
        let _ = answer.print();
        return;
    }
    let text = answer.render();
    let text = if output::stderr_has_colours() { text.ansi().to_string() } else { text.to_string() };
    output::say_text(arguments(&text, std::env::args_os()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arguments_are_cut_and_short_ones_are_not() {
        let long = "a".repeat(300);
        let words = ["aliquot", "describe", &long, &format!("--name={long}b"), "train"].map(OsString::from);
        let text = format!("no slice {long:?}, none {:?}, none \"train\"", format!("{long}b"));
        let begin = "a".repeat(64);
        assert_eq!(
            arguments(&text, words.into_iter()),
            format!("no slice \"{begin}… (300 characters)\", none \"{begin}… (301 characters)\", none \"train\"")
        );
    }
}
