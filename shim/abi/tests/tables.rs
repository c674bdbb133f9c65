//! The tables of functions are consistent. Whether they are complete is checked by the tests that read NVIDIA's
//! headers.

#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};

use aliquot_abi::cuda::{self, CUresult};
use aliquot_abi::nvml::{self, nvmlReturn_t};

/// A line of the driver's table.
struct Function {
    class: &'static str,
    policy: &'static str,
    symbol: &'static str,
    per_thread: Option<&'static str>,
    name: &'static str,
    version: u32,
}

macro_rules! cuda_functions {
    ($($class:ident $policy:ident: $symbol:ident $(| $per_thread:ident)? = $name:ident @ $version:literal $arguments:tt;)*) => {
        const CUDA: &[Function] = &[$(Function {
            class: stringify!($class),
            policy: stringify!($policy),
            symbol: stringify!($symbol),
            per_thread: [$(Some(stringify!($per_thread)),)? None][0],
            name: stringify!($name),
            version: $version,
        },)*];
    };
}
aliquot_abi::cuda_api!(cuda_functions);

macro_rules! nvml_functions {
    ($($class:ident $policy:ident: $symbol:ident $arguments:tt;)*) => {
        const NVML: &[(&str, &str, &str)] = &[$((stringify!($class), stringify!($policy), stringify!($symbol)),)*];
    };
}
aliquot_abi::nvml_api!(nvml_functions);

fn is_unique<'a>(names: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    let twice: Vec<&str> = names.filter(|&name| !seen.insert(name)).collect();
    assert_eq!(twice, [""; 0], "named twice");
}

fn symbols() -> impl Iterator<Item = &'static str> {
    CUDA.iter().flat_map(|function| [Some(function.symbol), function.per_thread]).flatten()
}

fn forwarded(families: &'static [cuda::Family]) -> impl Iterator<Item = &'static str> {
    families.iter().flat_map(|family| family.symbols).copied()
}

#[test]
fn every_function_of_the_driver_is_listed_once() {
    is_unique(symbols().chain(forwarded(cuda::FORWARDED)));
    assert!(symbols().chain(forwarded(cuda::FORWARDED)).all(|symbol| symbol.starts_with("cu")));
}

#[test]
fn every_function_of_nvml_is_listed_once() {
    is_unique(NVML.iter().map(|&(_, _, symbol)| symbol).chain(forwarded(nvml::FORWARDED)));
    assert!(NVML.iter().all(|(_, _, symbol)| symbol.starts_with("nvml")));
}

#[test]
fn every_forwarded_family_has_a_reason() {
    for family in cuda::FORWARDED.iter().chain(nvml::FORWARDED) {
        assert!(family.why.len() > 20 && !family.symbols.is_empty(), "{:?}", family.why);
    }
}

/// The number in a symbol's suffix `_v2`, 1 without a suffix, or `None` if the symbol is not a form of `name`.
fn form(symbol: &str, name: &str) -> Option<u32> {
    match symbol.strip_prefix(name)? {
        "" => Some(1),
        suffix => suffix.strip_prefix("_v")?.parse().ok(),
    }
}

#[test]
fn a_symbol_is_a_form_of_the_name_that_it_is_looked_up_by() {
    for Function { symbol, name, .. } in CUDA {
        assert!(form(symbol, name).is_some(), "{symbol} is looked up as {name}");
    }
}

#[test]
fn later_forms_came_with_later_versions() {
    let mut forms = BTreeMap::<&str, Vec<(u32, u32, &str)>>::new();
    for function in CUDA {
        let number = form(function.symbol, function.name).unwrap_or(0);
        forms.entry(function.name).or_default().push((number, function.version, function.symbol));
    }
    for (name, mut forms) in forms {
        forms.sort_unstable();
        for pair in forms.windows(2) {
            let [(_, before, _), (_, after, symbol)] = pair else { continue };
            assert!(before < after, "{symbol}, looked up as {name}, came with version {after}, after {before}");
        }
    }
}

#[test]
fn versions_are_versions_of_the_driver() {
    for Function { symbol, version, .. } in CUDA {
        // Versions count 1000 for each major and 10 for each minor version; the driver API begins with 2.0.
        assert!((2000..20000).contains(version) && version % 10 == 0 && version % 1000 < 100, "{symbol} @ {version}");
    }
}

#[test]
fn a_per_thread_form_is_named_after_its_function() {
    for Function { symbol, per_thread, .. } in CUDA {
        let Some(per_thread) = per_thread else { continue };
        let suffix = per_thread.strip_prefix(symbol);
        assert!(matches!(suffix, Some("_ptsz" | "_ptds")), "{per_thread} as the per-thread form of {symbol}");
    }
}

#[test]
fn all_but_forwarded_functions_have_a_policy() {
    const CLASSES: [&str; 8] = ["start", "memory", "launch", "copy", "synchronize", "view", "context", "forward"];
    let cuda = CUDA.iter().map(|function| (function.class, function.policy, function.symbol));
    for (class, policy, symbol) in cuda.chain(NVML.iter().copied()) {
        assert!(CLASSES.contains(&class), "{symbol} is of the unknown class {class}");
        assert_eq!(class == "forward", policy == "call", "{class} {policy}: {symbol}");
    }
}

#[test]
fn a_policy_belongs_to_one_class() {
    let mut classes = BTreeMap::new();
    for Function { class, policy, symbol, .. } in CUDA {
        let first = *classes.entry(policy).or_insert(class);
        assert_eq!(first, class, "the policy {policy} of {symbol}");
    }
}

#[test]
fn every_result_has_one_name_and_a_text_that_c_can_read() {
    let ends_with_nul = |text: &str| text.find('\0') == Some(text.len() - 1) && text.len() > 1;
    let names: Vec<&str> = (0..1000).filter_map(|code| CUresult(code).name_with_nul()).collect();
    is_unique(names.iter().copied());
    assert!(names.len() > 40 && names.iter().all(|name| ends_with_nul(name)));
    for code in 0..1000 {
        let (name, text) = (CUresult(code).name_with_nul(), CUresult(code).text_with_nul());
        assert_eq!(name.is_some(), text.is_some(), "{code}");
        assert!(text.is_none_or(ends_with_nul), "{text:?}");
        assert!(ends_with_nul(nvmlReturn_t(code).text_with_nul()));
    }
}
