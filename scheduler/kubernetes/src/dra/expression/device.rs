//! The variable `device`.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Iterator as Elements, Sizer};
use cel::common::types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelString, Kind, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};

use super::quantities::Quantity;
use super::values::Own;
use super::versions;

type Boxed = Box<dyn Val>;

/// The variable `device` for a device of a driver. A list of an attribute (Kubernetes' feature gate
/// `DRAListTypeAttributes`) is a list. What cannot be read is left out.
pub(super) fn device(driver: &str, device: &Device) -> Boxed {
    let attributes = device.attributes.iter().flatten();
    let attributes = attributes.filter_map(|(name, of)| Some((name.as_str(), attribute(of)?)));
    let capacity = device.capacity.iter().flatten().filter_map(|(name, of)| {
        let amount = Quantity::parse(&of.value.0)?;
        Some((name.as_str(), Box::new(Own(amount)) as Boxed))
    });
    let several = CelBool::from(device.allow_multiple_allocations == Some(true));
    let fields: [(&str, Boxed); 4] = [
        ("driver", Box::new(CelString::from(driver.to_owned()))),
        ("allowMultipleAllocations", Box::new(several)),
        ("attributes", Box::new(Domains::of(driver, attributes))),
        ("capacity", Box::new(Domains::of(driver, capacity))),
    ];
    let fields: HashMap<_, _> = fields.into_iter().map(|(name, of)| (key(name), of)).collect();
    Box::new(CelMap::from(fields))
}

fn key(name: &str) -> CelMapKey<'static> {
    CelMapKey::String(CelString::from(name.to_owned()))
}

fn attribute(of: &DeviceAttribute) -> Option<Boxed> {
    let DeviceAttribute { bool, bools, int, ints, string, strings, version, versions } = of;
    if let Some(versions) = versions {
        return versions.iter().map(|of| version_of(of)).collect::<Option<Vec<_>>>().map(list);
    }
    if let Some(version) = version {
        return version_of(version);
    }
    let of_bool = |of: &bool| Box::new(CelBool::from(*of)) as Boxed;
    let of_int = |of: &i64| Box::new(CelInt::from(*of)) as Boxed;
    let of_string = |of: &String| Box::new(CelString::from(of.clone())) as Boxed;
    let lists = bools.as_ref().map(|of| list(of.iter().map(of_bool).collect()));
    let lists = lists.or_else(|| ints.as_ref().map(|of| list(of.iter().map(of_int).collect())));
    let lists = lists.or_else(|| strings.as_ref().map(|of| list(of.iter().map(of_string).collect())));
    let simple = bool.as_ref().map(of_bool).or_else(|| int.as_ref().map(of_int));
    lists.or(simple).or_else(|| string.as_ref().map(of_string))
}

fn version_of(text: &str) -> Option<Boxed> {
    Some(Box::new(Own(versions::parse(text).ok()?)))
}

fn list(elements: Vec<Boxed>) -> Boxed {
    Box::new(CelList::from(elements))
}

/// Values by domain, then by name. A name without a domain belongs to the driver's domain. As in Kubernetes, any domain
/// can be asked for: one without values has none. Only those with values are in it, are counted and are walked through.
#[derive(Clone, Debug)]
struct Domains(Arc<CelMap<'static>>);

impl Domains {
    fn of<'a>(driver: &str, values: impl Iterator<Item = (&'a str, Boxed)>) -> Domains {
        let mut domains: HashMap<String, HashMap<CelMapKey<'static>, Boxed>> = HashMap::new();
        for (name, value) in values {
            let (domain, name) = name.split_once('/').unwrap_or((driver, name));
            domains.entry(domain.to_owned()).or_default().insert(key(name), value);
        }
        let domains = domains.into_iter().map(|(domain, of)| (key(&domain), Box::new(CelMap::from(of)) as Boxed));
        Domains(Arc::new(CelMap::from(domains.collect::<HashMap<_, _>>())))
    }
}

impl Val for Domains {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        <CelMap<'static> as Val>::cel_type()
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        let other = other.downcast_ref::<Domains>().map_or(other, |other| other.0.as_ref());
        self.0.equals(other)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Domains {}

impl Container for Domains {
    fn contains(&self, domain: &dyn Val) -> Result<bool, ExecutionError> {
        self.0.contains(domain)
    }
}

impl Indexer for Domains {
    fn get<'b, 'v>(&'b self, domain: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        match Indexer::get(self.0.as_ref(), domain) {
            Err(_) if domain.get_type().kind() == Kind::String => Ok(CowVal::owned(CelMap::default())),
            found => found,
        }
    }

    fn steal<'v>(self: Box<Self>, domain: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(Indexer::get(self.as_ref(), domain)?.into_owned())
    }
}

impl Iterable for Domains {
    fn iter<'b, 'v>(&'b self) -> Box<dyn Elements<'b, 'v> + 'b>
    where
        Self: 'v,
    {
        Iterable::iter(self.0.as_ref())
    }
}

impl Sizer for Domains {
    fn size(&self) -> CelInt {
        Sizer::size(self.0.as_ref())
    }
}
