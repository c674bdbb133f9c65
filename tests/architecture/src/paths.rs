//! Finds the paths in a source file that lead to other modules of its crate, in `use` trees and in code. Comments and
//! strings are skipped.

/// A path from the root of the crate: `["state", "node", "Node"]`. A glob ends in `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
}

/// The paths in the text of the module `module` that begin with `crate`, `self` or `super`.
pub(crate) fn named(module: &[String], text: &str) -> Vec<Named> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    // The inline modules that are open, each with the depth of braces at which it ends.
    let (mut inner, mut depth): (Vec<(String, usize)>, usize) = (Vec::new(), 0);
    let mut at = 0;
    while let Some((token, _)) = tokens.get(at) {
        let is = |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|(token, _)| token == text);
        let follows = at > 0 && tokens.get(at - 1).is_some_and(|(before, _)| before == "::");
        match token.as_str() {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inner.pop_if(|(_, end)| *end == depth);
            }
            "mod" if is(2, "{") => inner.push((tokens[at + 1].0.clone(), depth)),
            "crate" | "self" | "super" if !follows && (is(1, "::") || is(1, "as")) => {
                let here = || module.iter().chain(inner.iter().map(|(name, _)| name)).cloned().collect();
                let start = if token == "crate" { Vec::new() } else { here() };
                at = tree(&tokens, at, start, &mut found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads the path, or the tree of paths, that begins at token `at` and continues `path`. Returns the first token after it.
fn tree(tokens: &[(String, usize)], mut at: usize, mut path: Vec<String>, found: &mut Vec<Named>) -> usize {
    let line = tokens.get(at).map_or(0, |(_, line)| *line);
    loop {
        match tokens.get(at).map(|(token, _)| token.as_str()) {
            Some("{") => {
                at += 1;
                while let Some((token, _)) = tokens.get(at) {
                    match token.as_str() {
                        "}" => return at + 1,
                        "," => at += 1,
                        _ => at = tree(tokens, at, path.clone(), found),
                    }
                }
                return at;
            }
            Some("super") => _ = path.pop(),
            Some("crate" | "self") => {}
            Some(name) => path.push(name.to_owned()),
            None => return at,
        }
        at += 1;
        let is_name = |token: &str| token.starts_with(|first: char| first.is_alphanumeric() || "_{*".contains(first));
        let goes_on = tokens.get(at).is_some_and(|(token, _)| token == "::")
            && tokens.get(at + 1).is_some_and(|(token, _)| is_name(token));
        if !goes_on {
            found.push(Named { line, path });
            // The name after `as` is an alias.
            let has_alias = tokens.get(at).is_some_and(|(token, _)| token == "as");
            return if has_alias { at + 2 } else { at };
        }
        at += 1;
    }
}

/// Splits source text into names, `::` and single signs, each with its line.
pub(crate) fn tokens(text: &str) -> Vec<(String, usize)> {
    let signs: Vec<char> = text.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    let starts = |at: usize, with: &str| with.chars().enumerate().all(|(n, sign)| signs.get(at + n) == Some(&sign));
    while let Some(sign) = signs.get(at) {
        let end = match sign {
            '/' if starts(at, "//") => at + signs[at..].iter().take_while(|sign| **sign != '\n').count(),
            '/' if starts(at, "/*") => end_of_comment(&signs, at),
            '"' => end_of_string(&signs, at),
            'r' if starts(at, "r\"") || starts(at, "r#\"") || starts(at, "r##\"") => end_of_raw_string(&signs, at),
            // A character literal. A quote that matches neither line begins a lifetime.
            '\'' if starts(at, "'\\") => {
                at + 2 + signs[at + 2..].iter().skip(1).take_while(|sign| **sign != '\'').count() + 2
            }
            '\'' if signs.get(at + 2) == Some(&'\'') => at + 3,
            ':' if starts(at, "::") => {
                tokens.push(("::".to_owned(), line));
                at + 2
            }
            sign if sign.is_alphanumeric() || *sign == '_' => {
                let name: String =
                    signs[at..].iter().take_while(|sign| sign.is_alphanumeric() || **sign == '_').collect();
                let end = at + name.chars().count();
                tokens.push((name, line));
                end
            }
            sign => {
                if !sign.is_whitespace() {
                    tokens.push((sign.to_string(), line));
                }
                at + 1
            }
        };
        let end = end.min(signs.len());
        line += signs[at..end].iter().filter(|sign| **sign == '\n').count();
        at = end;
    }
    tokens
}

/// Block comments can be nested.
fn end_of_comment(signs: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < signs.len() {
        match (signs[at], signs.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn end_of_string(signs: &[char], mut at: usize) -> usize {
    at += 1;
    while signs.get(at).is_some_and(|sign| *sign != '"') {
        at += if signs[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn end_of_raw_string(signs: &[char], at: usize) -> usize {
    let hashes = signs[at + 1..].iter().take_while(|sign| **sign == '#').count();
    let mut end = at + hashes + 2;
    while end < signs.len() {
        let closes =
            signs[end] == '"' && signs[end + 1..].iter().take(hashes).filter(|sign| **sign == '#').count() == hashes;
        end += 1;
        if closes {
            return end + hashes;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(module: &str, text: &str) -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        named(&module, text).iter().map(|named| format!("{}:{}", named.line, named.path.join("::"))).collect()
    }

    #[test]
    fn a_use_tree_yields_each_of_its_paths() {
        let text = "use std::fmt;\nuse crate::{a::B, c::{self, D, e::*}};\nuse crate::f as g;\n";
        assert_eq!(paths("x", text), ["2:a::B", "2:c", "2:c::D", "2:c::e::*", "3:f"]);
    }

    #[test]
    fn super_is_resolved_from_the_file_and_from_inline_modules() {
        assert_eq!(paths("a::b::c", "use super::d;\nuse super::super::super::e::F;"), ["1:a::b::d", "2:e::F"]);
        let text = "mod tests {\n    use super::*;\n    fn f() { super::super::g() }\n}\nuse super::h;";
        assert_eq!(paths("a::b", text), ["2:a::b::*", "3:a::g", "5:a::h"]);
    }

    #[test]
    fn paths_in_code_are_found_and_those_in_comments_and_strings_are_not() {
        let text = "// crate::a\n/* crate::b /* crate::c */ crate::d */\n\
                    fn f<'a>(x: &'a str) -> crate::e::E { g!(\"crate::h \\\" crate::i\", r#\"crate::j\"#, '\"', crate::k(x)) }";
        assert_eq!(paths("x", text), ["3:e::E", "3:k"]);
    }

    #[test]
    fn type_parameters_and_visibilities_are_not_part_of_a_path() {
        let text = "pub(crate) fn f() -> crate::a::Key::<crate::b::C> { crate::d::e::<u8>() }";
        assert_eq!(paths("x", text), ["1:a::Key", "1:b::C", "1:d::e"]);
    }

    #[test]
    fn an_alias_of_the_crate_and_a_glob_are_paths_to_its_root() {
        assert_eq!(paths("a", "use crate as house;"), ["1:"]);
        assert_eq!(paths("a", "use crate::*;"), ["1:*"]);
    }
}
