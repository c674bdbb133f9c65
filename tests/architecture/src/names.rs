//! Checks which files of a crate use a name, such as another crate's.

use crate::layers::Source;
use crate::paths::tokens;

/// The uses of `name` in code, one sentence each, but for those in files of the modules `allowed` and below them. A
/// module is written as its path below `src`, such as `config/kubernetes`.
#[must_use]
pub fn violations(name: &str, allowed: &[&str], sources: &[Source]) -> Vec<String> {
    let may = |file: &str| {
        let module = file.trim_end_matches(".rs");
        let below = |of: &&str| module.strip_prefix(*of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        allowed.iter().any(below)
    };
    let strangers = sources.iter().filter(|(file, _)| !may(file));
    let uses = strangers.flat_map(|(file, text)| {
        let lines = tokens(text).into_iter().filter(|(token, _)| token == name);
        lines.map(move |(_, line)| format!("{file}:{line}: only {allowed:?} may use `{name}`"))
    });
    uses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        violations("adapter", &["border", "config/border"], &sources)
    }

    #[test]
    fn a_use_outside_the_allowed_modules_is_reported_with_file_and_line() {
        let told = "only [\"border\", \"config/border\"] may use `adapter`";
        let wrong = check(&[("core.rs", "use std::fmt;\nuse adapter::X;"), ("borders.rs", "fn f() { adapter::g() }")]);
        assert_eq!(wrong, [format!("core.rs:2: {told}"), format!("borders.rs:1: {told}")]);
    }

    #[test]
    fn uses_in_allowed_modules_and_mentions_in_comments_are_not_reported() {
        let good = [
            ("border.rs", "use adapter::X;"),
            ("border/inner.rs", "use adapter::X;"),
            ("config/border.rs", "use adapter::X;"),
            ("core.rs", "//! See `adapter`.\nconst TEXT: &str = \"adapter\"; use my_adapter::Y;"),
        ];
        assert_eq!(check(&good), [""; 0]);
    }
}
