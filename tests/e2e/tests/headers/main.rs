//! Compares the tables of functions with NVIDIA's own headers, in every minor version of CUDA 11, 12 and 13 that NVIDIA
//! publishes as a Python package. A function that a header declares and no table contains fails the test, by name.

mod compiler;
mod layouts;
mod table;
mod toolkit;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_abi::cuda::{CUresult, FORWARDED};
use aliquot_abi::nvml;

use crate::compiler::Prototype;
use crate::layouts::{Agreement, Layout};
use crate::toolkit::{NvmlHeader, Toolkit};

/// Fails the test with the list of all errors, not only the first one.
#[track_caller]
fn assert_none(what: &str, wrong: &BTreeSet<String>) {
    let list: String = wrong.iter().map(|line| format!("\n  {line}")).collect();
    assert!(wrong.is_empty(), "{what}:{list}");
}

/// Inline functions, which the headers define and programs contain: a driver need not have them.
const INLINE: [&str; 2] = ["cuGetProcAddress_ptsz", "cuGetProcAddress_v2_ptsz"];
/// Functions that NVIDIA's runtime library uses, and no header declares.
const IN_NO_HEADER: [&str; 3] = ["cuSubgridCreate", "cuSubgridWorkerGridCreate", "cuSubgridWorksetCreate"];

#[test]
fn every_function_of_the_driver_is_classified_once() {
    let mut classified = BTreeMap::new();
    let mut twice = BTreeSet::new();
    let lines = table::cuda();
    let in_table = lines.iter().flat_map(|line| line.symbols().map(|symbol| (symbol, line.class)));
    let forwarded = FORWARDED.iter().flat_map(|family| family.symbols.iter().map(|symbol| (*symbol, family.why)));
    for (symbol, place) in in_table.chain(forwarded) {
        if let Some(other) = classified.insert(symbol, place) {
            twice.insert(format!("{symbol}: {other}; {place}"));
        }
    }
    assert_none("in two places", &twice);

    let mut unclassified = BTreeSet::new();
    let mut declared = BTreeSet::new();
    for toolkit in Toolkit::all() {
        let functions = toolkit.functions();
        assert!(functions.len() > 500, "only {} functions in the headers of {}", functions.len(), toolkit.version);
        unclassified.extend(functions.keys().filter(|name| !classified.contains_key(name.as_str())).cloned());
        declared.extend(functions.into_keys());
    }
    assert_none("functions of the driver that nobody has looked at", &unclassified);
    let in_no_header: BTreeSet<&str> = INLINE.into_iter().chain(IN_NO_HEADER).collect();
    let unknown = classified.keys().filter(|symbol| !declared.contains(**symbol) && !in_no_header.contains(*symbol));
    assert_none("functions that no header declares", &unknown.map(|symbol| (*symbol).to_owned()).collect());
}

#[test]
fn names_and_versions_are_those_of_the_headers() {
    let lines = table::cuda();
    let mut wrong = BTreeSet::new();
    for toolkit in Toolkit::all() {
        let functions = toolkit.functions();
        let known = |symbol: &str| functions.contains_key(symbol);
        let typedefs = toolkit.typedefs();
        assert!(typedefs.len() > 400, "only {} types in the headers of {}", typedefs.len(), toolkit.version);
        let mut same_type = BTreeMap::new();
        for typedef in &typedefs {
            let of_name = || lines.iter().filter(|line| line.name == typedef.name);
            if of_name().next().is_none() {
                continue; // Among those that pass by: they are not looked up here.
            }
            let symbol = of_name().find_map(|line| match (typedef.per_thread, line.per_thread) {
                (false, _) => (line.since == typedef.since).then_some(line.symbol),
                // Per-thread default streams came with CUDA 7.
                (true, Some(per_thread)) => (line.since.max(7000) == typedef.since).then_some(per_thread),
                (true, None) => None,
            });
            match symbol {
                Some(symbol) if known(symbol) => {
                    let assertion =
                        format!("__builtin_types_compatible_p(__typeof__(&{symbol}), {})", typedef.type_name);
                    same_type.insert(symbol, assertion);
                }
                Some(symbol) => drop(wrong.insert(format!("{symbol} is not declared in {}", toolkit.version))),
                None => drop(wrong.insert(format!("no line is {}, of {}", typedef.type_name, toolkit.version))),
            }
        }
        // Conversely, the headers must have each version in the table.
        for line in lines.iter().filter(|line| known(line.symbol) && line.since <= toolkit.version) {
            let said = typedefs.iter().any(|typedef| typedef.name == line.name && typedef.since == line.since);
            if !said {
                wrong.insert(format!(
                    "{} = {} @ {} is no type of {}",
                    line.symbol, line.name, line.since, toolkit.version
                ));
            }
        }
        wrong.extend(toolkit.violated(same_type.into_values()));
    }
    assert_none("names and versions", &wrong);
}

#[test]
fn arguments_are_those_of_the_headers() {
    let lines = table::cuda();
    let arguments = |symbol: &str| {
        lines.iter().find(|line| line.symbols().any(|own| own == symbol)).map(|line| line.argument_bytes.clone())
    };
    let mut wrong = BTreeSet::new();
    for toolkit in Toolkit::all() {
        let functions = toolkit.functions();
        let sizes = toolkit.values(&argument_sizes(&functions, |symbol| arguments(symbol).is_some()));
        wrong.extend(wrong_arguments(&functions, &sizes, arguments));
    }
    assert_none("arguments", &wrong);
}

/// Errors for which the contract and the header's words differ on purpose; `CUresult::FATAL` says why.
const JUDGED_FATAL: [CUresult; 3] =
    [CUresult::ECC_UNCORRECTABLE, CUresult::NVLINK_UNCORRECTABLE, CUresult::CONTEXT_IS_DESTROYED];
const JUDGED_HARMLESS: [CUresult; 1] = [CUresult::EXTERNAL_DEVICE];
/// Words by which the header says that a context is unusable after an error.
const FATAL_WORDS: [&str; 4] =
    ["must be destroyed", "must be terminated", "cannot be used", "will return the same error"];

#[test]
fn errors_are_those_of_the_headers_and_fatal_where_these_say_so() {
    let name_of = |error: CUresult| error.name_with_nul().expect("a name").trim_end_matches('\0');
    let known = |name: &str| CUresult::ERRORS.iter().copied().find(|error| name_of(*error) == name);
    let (mut wrong, mut declared) = (BTreeSet::new(), BTreeSet::new());
    for toolkit in Toolkit::all() {
        let errors = toolkit.errors();
        assert!(errors.len() > 80, "only {} errors in the header of {}", errors.len(), toolkit.version);
        let ours = errors.keys().filter(|name| known(name).is_some()).cloned().collect();
        for (name, value) in toolkit.values(&ours) {
            if known(&name).is_none_or(|error| error.0 as usize != value) {
                wrong.insert(format!("{name} is {value}"));
            }
        }
        for (name, description) in errors {
            let is_fatal = FATAL_WORDS.iter().any(|words| description.contains(words));
            let judged = known(&name).map(|error| {
                let by_judgement = JUDGED_FATAL.contains(&error) || JUDGED_HARMLESS.contains(&error);
                by_judgement || CUresult::FATAL.contains(&error) == is_fatal
            });
            if !judged.unwrap_or(!is_fatal) {
                wrong.insert(format!("{name}, of {}: {description}", toolkit.version));
            }
            declared.insert(name);
        }
    }
    wrong.extend(
        CUresult::ERRORS.iter().map(|error| name_of(*error).to_owned()).filter(|name| !declared.contains(name)),
    );
    assert_none("errors", &wrong);
    assert!(JUDGED_FATAL.iter().all(|error| CUresult::FATAL.contains(error)));
    assert!(!JUDGED_HARMLESS.iter().any(|error| CUresult::FATAL.contains(error)));
}

/// Functions of NVML that return no result code, and so are not in the table.
const WITHOUT_RESULT: [&str; 1] = ["nvmlErrorString"];

#[test]
fn every_function_of_nvml_is_classified_once() {
    let lines = table::nvml();
    let mut classified = BTreeMap::new();
    let mut twice = BTreeSet::new();
    let in_table = lines.iter().map(|line| (line.symbol, line.class));
    let forwarded = nvml::FORWARDED.iter().flat_map(|family| family.symbols.iter().map(|symbol| (*symbol, family.why)));
    for (symbol, place) in in_table.chain(forwarded).chain(WITHOUT_RESULT.map(|symbol| (symbol, "no result"))) {
        if let Some(other) = classified.insert(symbol, place) {
            twice.insert(format!("{symbol}: {other}; {place}"));
        }
    }
    assert_none("in two places", &twice);

    let arguments =
        |symbol: &str| lines.iter().find(|line| line.symbol == symbol).map(|line| line.argument_bytes.clone());
    let (mut unclassified, mut wrong, mut declared) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for header in NvmlHeader::all() {
        let functions = header.functions();
        assert!(functions.len() > 200, "only {} functions in NVML's header of {}", functions.len(), header.version);
        unclassified.extend(functions.keys().filter(|name| !classified.contains_key(name.as_str())).cloned());
        let sizes = header.values(&argument_sizes(&functions, |symbol| arguments(symbol).is_some()));
        wrong.extend(wrong_arguments(&functions, &sizes, arguments));
        declared.extend(functions.into_keys());
    }
    assert_none("functions of NVML that nobody has looked at", &unclassified);
    assert_none("arguments", &wrong);
    let unknown = classified.keys().filter(|symbol| !declared.contains(**symbol));
    assert_none("functions that no header declares", &unknown.map(|symbol| (*symbol).to_owned()).collect());
}

#[test]
fn structures_are_laid_out_as_in_the_headers() {
    let (cuda, nvml) = (layouts::cuda(), layouts::nvml());
    let mut wrong = BTreeSet::new();
    for toolkit in Toolkit::all() {
        let there = || cuda.iter().filter(|layout| layout.since <= toolkit.version);
        let values = toolkit.values(&layouts::expressions(there()));
        wrong.extend(there().flat_map(|layout| disagreements(layout, &values)));
    }
    for header in NvmlHeader::all() {
        let there = || nvml.iter().filter(|layout| layout.since <= header.version);
        let values = header.values(&layouts::expressions(there()));
        wrong.extend(there().flat_map(|layout| disagreements(layout, &values)));
    }
    assert_none("layouts", &wrong);
}

#[test]
fn no_structure_of_the_contract_goes_without_a_comparison() {
    let sources = [
        (include_str!("../../../../shim/abi/src/cuda/structs.rs"), layouts::cuda()),
        (include_str!("../../../../shim/abi/src/cuda/structs/nodes.rs"), layouts::cuda()),
        (include_str!("../../../../shim/abi/src/nvml.rs"), layouts::nvml()),
        (include_str!("../../../../shim/abi/src/nvml/processes.rs"), layouts::nvml()),
    ];
    let mut missing = BTreeSet::new();
    for (source, layouts) in sources {
        let structures = source.lines().filter_map(|line| line.strip_prefix("pub struct ")?.strip_suffix(" {"));
        let compared = |name: &str| layouts.iter().any(|layout| layout.name == name);
        missing.extend(structures.filter(|name| !compared(name)).map(str::to_owned));
    }
    assert_none("structures to add to layouts.rs", &missing);
}

fn disagreements(layout: &Layout, values: &BTreeMap<String, usize>) -> impl Iterator<Item = String> {
    layout.agreements.iter().filter_map(|Agreement { in_header, in_contract }| {
        let value = values[in_header];
        (value != *in_contract).then(|| format!("{in_header} is {value}, in the contract {in_contract}"))
    })
}

/// The size of each type of argument of the functions that are `wanted`, as C expressions.
fn argument_sizes(functions: &BTreeMap<String, Prototype>, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let wanted = functions.iter().filter(|(name, _)| wanted(name));
    wanted.flat_map(|(_, types)| types).map(|argument| size_of_type(argument)).collect()
}

fn size_of_type(type_name: &str) -> String {
    format!("sizeof({type_name})")
}

/// A line for each function whose arguments differ between the table and the header.
fn wrong_arguments(
    functions: &BTreeMap<String, Prototype>,
    sizes: &BTreeMap<String, usize>,
    in_table: impl Fn(&str) -> Option<Vec<usize>>,
) -> BTreeSet<String> {
    let known = functions.iter().filter_map(|(name, types)| Some((name, types, in_table(name)?)));
    known
        .filter_map(|(name, types, in_table)| {
            let in_header: Vec<usize> = types.iter().map(|argument| sizes[&size_of_type(argument)]).collect();
            let line = || format!("{name}({}): {in_header:?} bytes, in the table {in_table:?}", types.join(", "));
            (in_header != in_table).then(line)
        })
        .collect()
}
