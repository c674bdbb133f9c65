//! CEL expressions of device classes and requests, in the environment that Kubernetes documents for them.
//!
//! Beside CEL's own functions there are those of quantities and of semantic versions, and `cel.bind`.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue};
use cel::extractors::This;
use cel::objects::Opaque;
use cel::parser::Macro;
use cel::{Context, Env, ExecutionError, Program, Value};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};

use super::take::thousandths;

/// An expression that selects devices.
pub(super) struct Expression {
    source: String,
    environment: Arc<Env>,
    program: Program,
    /// All string literals of the expression. The domains that it asks for are among them.
    texts: BTreeSet<String>,
}

impl Expression {
    /// # Errors
    /// The source is not a CEL expression. The error names it.
    pub(super) fn compile(source: &str) -> Result<Expression, String> {
        let environment = Arc::new(environment().map_err(|error| failed(source, &error.to_string()))?);
        let program = environment.compile(source).map_err(|error| failed(source, &error.to_string()))?;
        let mut texts = BTreeSet::new();
        collect_texts(&program.expression().expr, &mut texts);
        Ok(Expression { source: source.to_owned(), environment, program, texts })
    }

    /// Whether the expression selects a device of a driver.
    ///
    /// # Errors
    /// The expression cannot be evaluated for this device, or its result is not a boolean. The error names both.
    pub(super) fn selects(&self, driver: &str, device: &Device) -> Result<bool, String> {
        let why = |error: String| failed(&self.source, &format!("on device {:?}: {error}", device.name));
        let mut context = Context::with_env(Arc::clone(&self.environment));
        add_functions(&mut context).map_err(|error| why(error.to_string()))?;
        context.add_variable_from_value("device", self.value(driver, device));
        match self.program.execute(&context).map_err(|error| why(error.to_string()))? {
            Value::Bool(selected) => Ok(selected),
            other => Err(why(format!("it must be true or false, and is {other:?}"))),
        }
    }

    /// The variable `device`.
    fn value(&self, driver: &str, device: &Device) -> Value {
        let attributes = device.attributes.iter().flatten();
        let attributes = attributes.filter_map(|(name, of)| Some((name.as_str(), attribute(of)?)));
        let capacity = device.capacity.iter().flatten();
        let capacity = capacity.filter_map(|(name, of)| Some((name.as_str(), Amount::parse(&of.value.0)?.into())));
        let fields: HashMap<String, Value> = HashMap::from([
            ("driver".to_owned(), driver.to_owned().into()),
            ("allowMultipleAllocations".to_owned(), (device.allow_multiple_allocations == Some(true)).into()),
            ("attributes".to_owned(), self.by_domain(driver, attributes)),
            ("capacity".to_owned(), self.by_domain(driver, capacity)),
        ]);
        fields.into()
    }

    /// Values by domain, then by name. A name without a domain belongs to the driver's domain. In Kubernetes an
    /// expression can ask for any domain, so every domain that this one may ask for is there, even if it is empty.
    fn by_domain<'a>(&self, driver: &str, values: impl Iterator<Item = (&'a str, Value)>) -> Value {
        let mut domains: HashMap<String, HashMap<String, Value>> =
            self.texts.iter().map(|text| (text.clone(), HashMap::new())).collect();
        domains.entry(driver.to_owned()).or_default();
        for (name, value) in values {
            let (domain, name) = name.split_once('/').unwrap_or((driver, name));
            domains.entry(domain.to_owned()).or_default().insert(name.to_owned(), value);
        }
        let domains: HashMap<String, Value> = domains.into_iter().map(|(domain, of)| (domain, of.into())).collect();
        domains.into()
    }
}

fn environment() -> Result<Env, cel::DeclarationError> {
    let mut environment = Env::stdlib();
    cel::extensions::strings(&mut environment)?;
    cel::extensions::lists(&mut environment)?;
    cel::extensions::math(&mut environment)?;
    environment.add_macro(bind())?;
    Ok(environment)
}

/// `cel.bind(name, value, expression)` is the expression with the value in place of the name. As in CEL's own
/// implementation it is a loop over nothing, whose accumulator has the name. A value that fails fails here even if the
/// name is not used.
fn bind() -> Macro {
    Macro::receiver("bind", 3, |helper, target, arguments| {
        let is_of_cel = matches!(target.as_ref().map(|of| &of.expr), Some(Expr::Ident(name)) if name == "cel");
        let name = match arguments.first() {
            Some(first) if is_of_cel => match &first.expr {
                Expr::Ident(name) => name.clone(),
                _ => return Err(helper.new_error(first.id, "cel.bind() needs a name")),
            },
            _ => return Ok(None),
        };
        let (Some(result), Some(accu_init)) = (arguments.pop(), arguments.pop()) else { return Ok(None) };
        let bound = ComprehensionExpr {
            iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
            iter_var: "#unused".to_owned(),
            iter_var2: None,
            accu_var: name.clone(),
            accu_init,
            loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into()))),
            loop_step: helper.next_expr(Expr::Ident(name)),
            result,
        };
        Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(bound)))))
    })
}

fn failed(source: &str, error: &str) -> String {
    format!("the CEL expression {source:?} failed {error}")
}

fn attribute(of: &DeviceAttribute) -> Option<Value> {
    let DeviceAttribute { bool, int, string, version, .. } = of;
    if let Some(version) = version {
        return semver::Version::parse(version).ok().map(|version| Version(version).into());
    }
    let simple = bool.map(Value::from).or_else(|| int.map(Value::from));
    simple.or_else(|| string.clone().map(Value::from))
}

/// Collects the string literals of an expression.
fn collect_texts(expression: &Expr, texts: &mut BTreeSet<String>) {
    match expression {
        Expr::Literal(LiteralValue::String(text)) => _ = texts.insert(text.inner().to_owned()),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => {
            let parts = call.target.iter().map(AsRef::as_ref).chain(&call.args);
            parts.for_each(|part| collect_texts(&part.expr, texts));
        }
        Expr::Comprehension(of) => {
            for part in [&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result] {
                collect_texts(&part.expr, texts);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(|part| collect_texts(&part.expr, texts)),
        Expr::Select(select) => collect_texts(&select.operand.expr, texts),
        Expr::Map(map) => map.entries.iter().for_each(|entry| collect_texts_of_entry(&entry.expr, texts)),
        Expr::Struct(of) => of.entries.iter().for_each(|entry| collect_texts_of_entry(&entry.expr, texts)),
    }
}

fn collect_texts_of_entry(entry: &EntryExpr, texts: &mut BTreeSet<String>) {
    match entry {
        EntryExpr::StructField(field) => collect_texts(&field.value.expr, texts),
        EntryExpr::MapEntry(entry) => {
            collect_texts(&entry.key.expr, texts);
            collect_texts(&entry.value.expr, texts);
        }
    }
}

/// A quantity, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount(i128);

impl Amount {
    fn parse(text: &str) -> Option<Amount> {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let amount = i128::try_from(thousandths(text)?).ok()?;
        Some(Amount(if is_negative { -amount } else { amount }))
    }
}

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version(semver::Version);

impl Opaque for Amount {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Quantity"
    }
}

impl Opaque for Version {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Semver"
    }
}

impl From<Amount> for Value {
    fn from(amount: Amount) -> Value {
        Value::Opaque(Arc::new(amount))
    }
}

impl From<Version> for Value {
    fn from(version: Version) -> Value {
        Value::Opaque(Arc::new(version))
    }
}

/// The result of a function that expressions can call.
type Answer = Result<Value, ExecutionError>;

fn add_functions(context: &mut Context<'_, '_>) -> Result<(), cel::DeclarationError> {
    context.add_function("quantity", |text: Arc<String>| -> Answer {
        let amount = Amount::parse(&text).map(Value::from);
        amount.ok_or_else(|| ExecutionError::function_error("quantity", format!("{text:?} is no quantity")))
    })?;
    context.add_function("isQuantity", |text: Arc<String>| Amount::parse(&text).is_some())?;
    context.add_function("semver", |text: Arc<String>| -> Answer {
        let version = semver::Version::parse(&text).map(|version| Version(version).into());
        version.map_err(|error| ExecutionError::function_error("semver", format!("{text:?}: {error}")))
    })?;
    context.add_function("isSemver", |text: Arc<String>| semver::Version::parse(&text).is_ok())?;
    context.add_function("compareTo", |This(this): This<Value>, other: Value| -> Answer {
        Ok(Value::Int(compare("compareTo", &this, &other)? as i64))
    })?;
    context.add_function("isGreaterThan", |This(this): This<Value>, other: Value| -> Answer {
        Ok(compare("isGreaterThan", &this, &other)?.is_gt().into())
    })?;
    context.add_function("isLessThan", |This(this): This<Value>, other: Value| -> Answer {
        Ok(compare("isLessThan", &this, &other)?.is_lt().into())
    })?;
    context.add_function("add", |This(this): This<Value>, other: Value| -> Answer {
        sum("add", &this, &other, i128::checked_add)
    })?;
    context.add_function("sub", |This(this): This<Value>, other: Value| -> Answer {
        sum("sub", &this, &other, i128::checked_sub)
    })?;
    context.add_function("sign", |This(this): This<Value>| -> Answer {
        Ok(Value::Int(i64::from(amount("sign", &this)?.signum() as i8)))
    })?;
    context.add_function("isInteger", |This(this): This<Value>| -> Answer {
        Ok((amount("isInteger", &this)? % 1000 == 0).into())
    })?;
    context.add_function("asInteger", |This(this): This<Value>| -> Answer {
        let thousandths = amount("asInteger", &this)?;
        let whole = (thousandths % 1000 == 0).then(|| i64::try_from(thousandths / 1000).ok()).flatten();
        whole.map(Value::Int).ok_or_else(|| ExecutionError::function_error("asInteger", "it is no whole number"))
    })?;
    for (name, number) in [
        ("major", (|version| version.major) as fn(&semver::Version) -> u64),
        ("minor", |version| version.minor),
        ("patch", |version| version.patch),
    ] {
        context.add_function(name, move |This(this): This<Value>| -> Answer {
            let of = opaque::<Version>(&this).ok_or_else(|| not_of(name, &this))?;
            Ok(Value::Int(i64::try_from(number(&of.0)).unwrap_or(i64::MAX)))
        })?;
    }
    Ok(())
}

fn opaque<T: 'static>(value: &Value) -> Option<&T> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}

fn not_of(function: &str, value: &Value) -> ExecutionError {
    ExecutionError::function_error(function, format!("there is no such function of {value:?}"))
}

fn amount(function: &str, value: &Value) -> Result<i128, ExecutionError> {
    opaque::<Amount>(value).map(|amount| amount.0).ok_or_else(|| not_of(function, value))
}

fn compare(function: &str, one: &Value, other: &Value) -> Result<Ordering, ExecutionError> {
    match (opaque::<Version>(one), opaque::<Version>(other)) {
        (Some(one), Some(other)) => Ok(one.0.cmp_precedence(&other.0)),
        _ => Ok(amount(function, one)?.cmp(&amount(function, other)?)),
    }
}

/// Combines a quantity with `other`, which can be a quantity or an integer.
fn sum(function: &str, one: &Value, other: &Value, sum: fn(i128, i128) -> Option<i128>) -> Answer {
    let other = match other {
        Value::Int(units) => i128::from(*units) * 1000,
        other => amount(function, other)?,
    };
    let sum = sum(amount(function, one)?, other).map(|sum| Amount(sum).into());
    sum.ok_or_else(|| ExecutionError::function_error(function, "the result is too large"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device() -> Device {
        serde_json::from_value(json!({
            "name": "gpu-0", "allowMultipleAllocations": true,
            "attributes": {
                "type": {"string": "gpu"}, "healthy": {"bool": true}, "computeCapability": {"version": "9.0.0"},
                "resource.kubernetes.io/numaNode": {"int": 1},
            },
            "capacity": {"core": {"value": "100"}, "memory": {"value": "80Gi"}},
        }))
        .unwrap()
    }

    fn selects(source: &str) -> Result<bool, String> {
        Expression::compile(source)?.selects("gpu.aliquot.dev", &device())
    }

    #[test]
    fn expressions_see_a_device_as_in_kubernetes() {
        for (source, expected) in [
            (r#"device.driver == "gpu.aliquot.dev""#, true),
            (r#"device.driver == "gpu.aliquot.dev" && device.attributes["gpu.aliquot.dev"].type == "mig""#, false),
            (r#"device.attributes["gpu.aliquot.dev"].healthy && device.allowMultipleAllocations"#, true),
            (r#"device.attributes["gpu.aliquot.dev"].?migProfile.orValue("") == "3g.40gb""#, false),
            (r#"device.attributes["gpu.aliquot.dev"].?type.orValue("") == "gpu""#, true),
            (r#"device.attributes["other.example.com"].?type.orValue("none") == "none""#, true),
            (r#"has(device.attributes["other.example.com"].type)"#, false),
            (r#""type" in device.attributes["gpu.aliquot.dev"]"#, true),
            (r#"device.attributes["resource.kubernetes.io"].numaNode == 1"#, true),
            (r#"device.attributes["gpu.aliquot.dev"].computeCapability.isGreaterThan(semver("8.9.0"))"#, true),
            (r#"device.attributes["gpu.aliquot.dev"].computeCapability.compareTo(semver("9.0.0")) == 0"#, true),
            (r#"device.attributes["gpu.aliquot.dev"].computeCapability.major() < 9"#, false),
            (r#"device.capacity["gpu.aliquot.dev"].memory.compareTo(quantity("40Gi")) >= 0"#, true),
            (r#"device.capacity["gpu.aliquot.dev"].memory.isLessThan(quantity("80Gi"))"#, false),
            (r#"device.capacity["gpu.aliquot.dev"].core == quantity("100")"#, true),
            (r#"device.capacity["gpu.aliquot.dev"].core.add(1).asInteger() == 101"#, true),
            (r#"["gpu", "mig"].exists(type, type == device.attributes["gpu.aliquot.dev"].type)"#, true),
            (r#"device.attributes["gpu.aliquot.dev"].type.startsWith("g")"#, true),
            (r#"device.attributes["gpu.aliquot.dev"].type.matches("^g.u$")"#, true),
            (r#"cel.bind(of, device.attributes["gpu.aliquot.dev"], of.healthy && of.type == "gpu")"#, true),
            (r#"cel.bind(of, device.attributes["other.example.com"], has(of.type))"#, false),
            (r#"cel.bind(a, 1, cel.bind(b, a + 1, a + b == 3)) && ["x"].exists(c, cel.bind(d, c, d == c))"#, true),
        ] {
            assert_eq!(selects(source), Ok(expected), "{source}");
        }
    }

    #[test]
    fn what_cannot_be_evaluated_says_so_with_the_device() {
        for source in [
            r#"device.attributes["gpu.aliquot.dev"].colour == "red""#,
            r#"device.attributes["gpu.aliquot.dev"].type"#,
            r#"device.capacity["gpu.aliquot.dev"].memory.isLessThan("80Gi")"#,
            r#"device.capacity["gpu.aliquot.dev"].memory.compareTo(quantity("80 Gi")) == 0"#,
            r#"device.attributes["gpu.aliquot.dev"].type.unknownFunction()"#,
            r#"cel.bind(of, device.attributes["gpu.aliquot.dev"], of.colour == "red")"#,
            "device.bind(a, 1, true)",
        ] {
            let error = selects(source).unwrap_err();
            assert!(error.contains("gpu-0") && error.contains("CEL expression"), "{source}: {error}");
        }
        let error = selects("device.driver ==").unwrap_err();
        assert!(error.contains("device.driver =="), "{error}");
    }
}
