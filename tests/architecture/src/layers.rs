//! Checks the layers of a crate, which are the folders in its `src`. Code may import its own layer and lower layers.
//! The modules of a layer must not import each other in a circle, and nor must the files of a module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::paths::named;

/// A source file: its path below `src`, such as `state/node.rs`, and its text.
pub type Source = (String, String);

/// All source files of a crate.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn sources(src: &Path) -> Vec<Source> {
    let mut folders = vec![src.to_owned()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("an entry of the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let below = path.strip_prefix(src).expect("it was found below the folder");
                sources.push((below.to_string_lossy().into_owned(), text));
            }
        }
    }
    sources.sort();
    sources
}

/// An import from one module of a layer, or file of a module, to another, and where it stands.
type Imports = BTreeMap<(String, String), String>;

/// Imports that break the rules, one sentence each. `layers` are the crate's layers, the lowest first.
#[must_use]
pub fn violations(layers: &[&str], sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut within: BTreeMap<String, Imports> = BTreeMap::new();
    let modules: BTreeSet<&str> = sources.iter().map(|(file, _)| file.trim_end_matches(".rs")).collect();
    for (file, text) in sources.iter().filter(|(file, _)| file != "lib.rs") {
        let module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let Some(height) = layers.iter().position(|layer| *layer == module[0]) else {
            wrong.push(format!(
                "{file}: {:?} is not one of the layers {layers:?}; move the file into one of them",
                module[0]
            ));
            continue;
        };
        let layer = layers[height];
        for named in named(&module, text) {
            let (at, path) = (format!("{file}:{}", named.line), named.path.join("::"));
            let Some(other) = named.path.first().and_then(|first| layers.iter().position(|layer| layer == first))
            else {
                wrong.push(format!("{at}: `crate::{path}` is a path by the crate's root; name the layer in it"));
                continue;
            };
            if other > height {
                wrong.push(format!(
                    "{at}: layer `{layer}` imports `crate::{path}` from layer `{}`, which is above it",
                    layers[other]
                ));
            }
            let (true, Some(from), Some(to)) = (other == height, module.get(1), named.path.get(1)) else { continue };
            let (place, from, to) = if from == to {
                let file_of = |path: &[String]| {
                    let ends = (1..=path.len()).rev().map(|end| path[..end].join("/"));
                    ends.into_iter().find(|file| modules.contains(file.as_str())).unwrap_or_default()
                };
                (format!("module `{layer}::{from}`"), module.join("/"), file_of(&named.path))
            } else {
                (format!("layer `{layer}`"), from.clone(), to.clone())
            };
            if from != to {
                within.entry(place).or_default().entry((from, to)).or_insert(at);
            }
        }
    }
    for (place, mut imports) in within {
        while let Some(cycle) = cycle(&imports) {
            let steps: Vec<String> =
                cycle.iter().map(|arrow| format!("{} -> {} ({})", arrow.0, arrow.1, imports[arrow])).collect();
            wrong.push(format!("{place}: imports in a circle: {}", steps.join(", ")));
            // Without this import, the next search finds the next circle.
            imports.remove(&cycle[0]);
        }
    }
    wrong
}

/// The shortest circle through the first module that is part of a circle.
fn cycle(imports: &Imports) -> Option<Vec<(String, String)>> {
    let starts: BTreeSet<&String> = imports.keys().map(|(from, _)| from).collect();
    starts.into_iter().find_map(|start| {
        let mut ways = vec![vec![start]];
        let mut seen = BTreeSet::new();
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in ways {
                let last = *way.last()?;
                for (_, to) in imports.keys().filter(|(from, _)| from == last) {
                    let way: Vec<&String> = way.iter().copied().chain([to]).collect();
                    if to == start {
                        return Some(way.windows(2).map(|step| (step[0].clone(), step[1].clone())).collect());
                    }
                    if seen.insert(to) {
                        longer.push(way);
                    }
                }
            }
            ways = longer;
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [&str; 3] = ["words", "books", "choices"];

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        violations(&LAYERS, &sources)
    }

    #[test]
    fn imports_of_the_same_layer_and_of_lower_layers_are_allowed() {
        let good = [
            ("lib.rs", "mod words; mod books; mod choices; pub use choices::plan::Plan;"),
            ("words.rs", "pub(crate) mod claim;"),
            ("words/claim.rs", "use std::fmt;"),
            ("books/node.rs", "use crate::words::claim::Claim;\n/// See [`Plan`](crate::Plan)."),
            ("books/node/device.rs", "use super::Node; use crate::books::shelf::Shelf;"),
            ("choices/plan.rs", "use crate::books::node::Node;"),
        ];
        assert_eq!(check(&good), [""; 0]);
    }

    #[test]
    fn an_import_of_a_higher_layer_is_reported_with_file_line_and_both_layers() {
        let wrong = check(&[("books/node.rs", "use std::fmt;\nuse crate::choices::plan::Plan;\n")]);
        assert_eq!(
            wrong,
            [
                "books/node.rs:2: layer `books` imports `crate::choices::plan::Plan` from layer `choices`, which is above it"
            ]
        );
    }

    #[test]
    fn an_import_by_super_by_a_use_tree_or_in_code_is_reported() {
        for text in [
            "use super::super::choices::plan;",
            "use crate::{choices::plan, words::claim};",
            "fn f() { crate::choices::plan::make() }",
            "#[cfg(test)]\nmod tests { use super::super::super::choices::plan; }",
        ] {
            let wrong = check(&[("books/node.rs", text)]);
            assert!(wrong.len() == 1 && wrong[0].contains("`choices`, which is above"), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn a_path_by_the_root_of_the_crate_is_reported() {
        for text in ["use crate::Plan;", "use crate::*;", "use crate as house;"] {
            let wrong = check(&[("books/node.rs", text)]);
            assert!(wrong.len() == 1 && wrong[0].contains("is a path by the crate's root"), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn a_file_outside_the_layers_is_reported() {
        let wrong = check(&[("helpers.rs", "")]);
        assert!(
            wrong.len() == 1 && wrong[0].starts_with("helpers.rs: \"helpers\" is not one of the layers"),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_circle_of_files_is_reported_and_a_parent_that_uses_its_children_is_not() {
        let wrong = check(&[
            ("books/a.rs", "mod b; mod c; use b::B;"),
            ("books/a/b.rs", "use super::A; use super::c::C;"),
            ("books/a/c.rs", "use std::fmt;\nuse crate::books::a::b::B;"),
        ]);
        assert_eq!(
            wrong,
            ["module `books::a`: imports in a circle: books/a/b -> books/a/c (books/a/b.rs:1), \
              books/a/c -> books/a/b (books/a/c.rs:2)"]
        );
    }

    #[test]
    fn a_circle_of_modules_is_reported_with_a_file_and_line_for_each_import() {
        let wrong = check(&[
            ("books/a.rs", "use super::b::B;"),
            ("books/b/inner.rs", "use crate::words::claim;\nuse crate::books::c::C;"),
            ("books/c.rs", "use crate::books::a::A;"),
        ]);
        assert_eq!(
            wrong,
            ["layer `books`: imports in a circle: a -> b (books/a.rs:1), b -> c (books/b/inner.rs:2), \
              c -> a (books/c.rs:1)"]
        );
    }
}
