//! Formats of texts: the library `kubernetes.format` of Kubernetes.

use cel::common::functions::Function;
use cel::common::types::{CelList, CelOptional, CelString, Kind, Type};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env};
use jiff::civil::Date;

use super::patterns::compiled;
use super::urls;
use super::values::{Answer, Held, Own};

#[derive(Clone, Copy, Debug)]
struct Format {
    name: &'static str,
    has: fn(&str) -> bool,
}

impl PartialEq for Format {
    fn eq(&self, other: &Format) -> bool {
        self.name == other.name
    }
}

impl Held for Format {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, "kubernetes.NamedFormat");
}

const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const SERVICE: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
const NAME: &str = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
const UUID: &str = "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$";
const TIME: &str = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$";

const FORMATS: [Format; 13] = [
    Format { name: "dns1123Label", has: |text| fits(LABEL, 63, text) },
    Format { name: "dns1123LabelPrefix", has: |text| fits(LABEL, 63, &closed(text)) },
    Format { name: "dns1123Subdomain", has: |text| fits(SUBDOMAIN, 253, text) },
    Format { name: "dns1123SubdomainPrefix", has: |text| fits(SUBDOMAIN, 253, &closed(text)) },
    Format { name: "dns1035Label", has: |text| fits(SERVICE, 63, text) },
    Format { name: "dns1035LabelPrefix", has: |text| fits(SERVICE, 63, &closed(text)) },
    Format { name: "qualifiedName", has: is_qualified_name },
    Format { name: "labelValue", has: |text| text.is_empty() || fits(NAME, 63, text) },
    Format { name: "uri", has: |text| urls::check(text).is_ok() },
    Format { name: "uuid", has: |text| fits(UUID, 36, text) },
    Format { name: "byte", has: |text| fits(BASE64, usize::MAX, text) },
    Format { name: "date", has: is_date },
    Format { name: "datetime", has: is_time },
];

/// Whether a text of at most `max` bytes matches a pattern.
fn fits(pattern: &str, max: usize, text: &str) -> bool {
    text.len() <= max && compiled(pattern).is_ok_and(|pattern| pattern.is_match(text))
}

/// A prefix, which can end with a dash, as a name that could start with it.
fn closed(prefix: &str) -> String {
    match prefix.strip_suffix('-').and_then(|start| start.char_indices().next_back().map(|(end, _)| &start[..end])) {
        Some(start) => format!("{start}a"),
        None => prefix.to_owned(),
    }
}

/// A name, or a name after a domain and a slash.
fn is_qualified_name(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    domain.is_none_or(|domain| fits(SUBDOMAIN, 253, domain)) && fits(NAME, 63, name)
}

fn is_date(text: &str) -> bool {
    let is_written_so = fits("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", 10, text);
    let number = |from, to| text.get(from..to).and_then(|text| text.parse::<i16>().ok());
    match (number(0, 4), number(5, 7), number(8, 10)) {
        (Some(year), Some(month), Some(day)) => is_written_so && Date::new(year, month as i8, day as i8).is_ok(),
        _ => false,
    }
}

fn is_time(text: &str) -> bool {
    let parts = text.split_once(['T', 't']);
    parts.is_some_and(|(date, time)| is_date(date) && fits(TIME, usize::MAX, time))
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    let functions: [Function; FORMATS.len()] = [
        format::<0>,
        format::<1>,
        format::<2>,
        format::<3>,
        format::<4>,
        format::<5>,
        format::<6>,
        format::<7>,
        format::<8>,
        format::<9>,
        format::<10>,
        format::<11>,
        format::<12>,
    ];
    for (format, function) in FORMATS.iter().zip(functions) {
        let name = format!("format.{}", format.name);
        environment.add_overload(&name, &name, vec![], function)?;
    }
    cel::add_overload!(environment, fn named: (CelString) -> CelOptional, name = "format.named")?;
    cel::add_member_overload!(environment, fn validate: (Own<Format>, CelString) -> CelOptional)?;
    environment.add_type(Format::TYPE.to_owned())
}

fn format<'b, 'v, const INDEX: usize>(_: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    Ok(CowVal::owned(Own(FORMATS[INDEX])))
}

fn named(name: &CelString<'_>) -> CelOptional<'static> {
    match FORMATS.iter().find(|format| format.name == name.inner()) {
        Some(format) => CelOptional::of(Box::new(Own(*format))),
        None => CelOptional::none(),
    }
}

/// What is wrong with a text; none: nothing. The words differ from those of Kubernetes.
fn validate(format: &Own<Format>, text: &CelString<'_>) -> CelOptional<'static> {
    if (format.0.has)(text) {
        return CelOptional::none();
    }
    let why = CelString::from(format!("it does not have the format {}", format.0.name));
    CelOptional::of(Box::new(CelList::from(vec![Box::new(why) as Box<dyn Val>])))
}
