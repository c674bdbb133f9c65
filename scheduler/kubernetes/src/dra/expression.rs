//! CEL expressions of device classes and requests, in the environment that Kubernetes documents for them: what
//! `k8s.io/dynamic-resource-allocation/cel` of Kubernetes 1.36 has.
//!
//! Kubernetes' API server refuses expressions whose types do not fit, or that could take too long. Here types are
//! looked at when an expression is evaluated: one that does not fit is an error then, and selects no device. A few
//! functions are here that Kubernetes does not have, as those of CEL's library `math`.

mod addresses;
mod binding;
mod device;
mod formats;
mod limits;
mod lists;
mod pairs;
mod parts;
mod patterns;
mod prepared;
mod quantities;
mod urls;
mod values;
mod versions;

use std::sync::{Arc, LazyLock};

use cel::common::types::{CelBool, DYN_TYPE};
use cel::{Context, DeclarationError, Env, IdedExpr, Value, extensions};
use k8s_openapi::api::resource::v1::Device;

use values::Own;

/// Levels of an expression that Kubernetes' API server reads. It also refuses one with more of them.
const LEVELS_READ_MAX: u16 = 250;
/// Levels of an expression as it is evaluated, with those that loops consist of.
const LEVELS_MAX: usize = 1000;
/// An expression with more levels is evaluated on a large stack.
const LEVELS_ON_SMALL_STACK: usize = 20;

/// An expression that selects devices.
pub(super) struct Expression {
    source: String,
    environment: Arc<Env>,
    parsed: IdedExpr,
    is_deep: bool,
}

impl Expression {
    /// # Errors
    /// The source is not a CEL expression. The error names it.
    pub(super) fn compile(source: &str) -> Result<Expression, String> {
        static ENVIRONMENT: LazyLock<Result<Arc<Env>, DeclarationError>> =
            LazyLock::new(|| environment().map(Arc::new));
        let environment = ENVIRONMENT.as_ref().map_err(|error| failed(source, &error.to_string()))?;
        let parse = || {
            let parser = environment.parser().max_recursion_depth(LEVELS_READ_MAX);
            let mut parsed = parser.parse(source).map_err(|error| error.to_string())?;
            prepared::prepare(&mut parsed);
            match parts::depth(&parsed) {
                levels if levels > LEVELS_MAX => Err("it is nested too deeply".to_owned()),
                levels => Ok((parsed, levels > LEVELS_ON_SMALL_STACK)),
            }
        };
        let parsed = limits::with_large_stack(parse).and_then(|parsed| parsed);
        let (parsed, is_deep) = parsed.map_err(|error| failed(source, &error))?;
        Ok(Expression { source: source.to_owned(), environment: Arc::clone(environment), parsed, is_deep })
    }

    /// What it was compiled from.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Whether the expression selects a device of a driver.
    ///
    /// # Errors
    /// The expression cannot be evaluated for this device, or its result is not a boolean. The error names both.
    pub(super) fn selects(&self, driver: &str, device: &Device) -> Result<bool, String> {
        let evaluate = || self.evaluate(driver, device);
        let selected = if self.is_deep { limits::with_large_stack(evaluate).and_then(|of| of) } else { evaluate() };
        selected.map_err(|error| failed(&self.source, &format!("on device {:?}: {error}", device.name)))
    }

    fn evaluate(&self, driver: &str, device: &Device) -> Result<bool, String> {
        let mut context = Context::with_env(Arc::clone(&self.environment));
        context.add_variable_as_val("device", device::device(driver, device));
        context.add_variable_as_val(limits::STEPS, Box::new(Own(limits::Steps::default())));
        let result = Value::resolve_val(&self.parsed, &context).map_err(|error| error.to_string())?;
        match result.downcast_ref::<CelBool>() {
            Some(selected) => Ok(*selected.inner()),
            None => Err(format!("it must be true or false, and is of type {}", result.get_type().name())),
        }
    }
}

fn environment() -> Result<Env, DeclarationError> {
    let mut environment = Env::stdlib();
    environment.set_error_on_duplicate_map_keys(false);
    let libraries = [
        extensions::strings,
        extensions::lists,
        extensions::math,
        addresses::add,
        binding::add,
        formats::add,
        limits::add,
        lists::add,
        pairs::add,
        patterns::add,
        quantities::add,
        urls::add,
        versions::add,
    ];
    libraries.into_iter().try_for_each(|add| environment.add_extension(add))?;
    environment.add_overload(prepared::EQUALS, prepared::EQUALS, vec![DYN_TYPE, DYN_TYPE], values::equals)?;
    Ok(environment)
}

fn failed(source: &str, error: &str) -> String {
    format!("the CEL expression {source:?} failed {error}")
}

#[cfg(test)]
mod tests;
