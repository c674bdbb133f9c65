//! Functions of lists: the library `kubernetes.lists`, and what Kubernetes has of CEL's libraries of lists, sets and
//! optional values beyond the crate for CEL.

use std::cmp::Ordering;

use cel::common::functions::Function;
use cel::common::types::{CelInt, CelList, CelOptional, DYN_TYPE, Kind, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::values::{Answer, argument_count, elements, failed, no_overload, truth};

/// A list that `includes` is asked of can have so many elements, as an attribute can.
const INCLUDES_MAX: usize = 48;

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    let of_list: [(&str, Function); 7] = [
        ("sum", sum),
        ("min", |list| extreme("min", list, Ordering::Greater)),
        ("max", |list| extreme("max", list, Ordering::Less)),
        ("isSorted", is_sorted),
        ("first", |list| at_end(list, |elements| elements.first().copied())),
        ("last", |list| at_end(list, |elements| elements.last().copied())),
        ("unwrapOpt", unwrap),
    ];
    for (name, function) in of_list {
        environment.add_member_overload(name, &format!("list.{name}()"), LIST_TYPE, vec![], function)?;
    }
    environment.add_overload("optional.unwrap", "optional.unwrap(list)", vec![LIST_TYPE], unwrap)?;
    let place: [(&str, Function); 2] =
        [("indexOf", |arguments| place(arguments, false)), ("lastIndexOf", |arguments| place(arguments, true))];
    for (name, function) in place {
        environment.add_member_overload(name, &format!("list.{name}(dyn)"), LIST_TYPE, vec![DYN_TYPE], function)?;
    }
    environment.add_member_overload("includes", "dyn.includes(dyn)", DYN_TYPE, vec![DYN_TYPE], includes)?;
    let sets: [(&str, Function); 3] = [
        ("sets.contains", |lists| compare(lists, contains_all)),
        ("sets.equivalent", |lists| compare(lists, |one, other| contains_all(one, other) && contains_all(other, one))),
        ("sets.intersects", |lists| compare(lists, |one, other| one.iter().any(|of| contains(other, *of)))),
    ];
    for (name, function) in sets {
        environment.add_overload(name, &format!("{name}(list,list)"), vec![LIST_TYPE, LIST_TYPE], function)?;
    }
    Ok(())
}

type Elements<'a, 'b, 'v> = &'a [&'b (dyn Val + 'v)];

fn one<'a, 'b, 'v>(arguments: &'a [CowVal<'b, 'v>]) -> Result<&'a CowVal<'b, 'v>, ExecutionError> {
    arguments.first().ok_or_else(|| argument_count(1, 0))
}

fn two<'a, 'b, 'v>(arguments: &'a [CowVal<'b, 'v>]) -> Result<[&'a CowVal<'b, 'v>; 2], ExecutionError> {
    match arguments {
        [one, other] => Ok([one, other]),
        _ => Err(argument_count(2, arguments.len())),
    }
}

/// The sum of numbers of one type, or of durations. That of no elements is 0.
fn sum<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let elements = elements(one(&arguments)?.as_ref())?;
    let Some((first, rest)) = elements.split_first() else { return Ok(CowVal::owned(CelInt::from(0))) };
    let mut sum = first.clone_as_boxed();
    if !matches!(first.get_type().kind(), Kind::Int | Kind::UInt | Kind::Double | Kind::Duration) {
        return Err(no_overload("sum", &[first.get_type()]));
    }
    for element in rest {
        let added = sum.as_adder().ok_or_else(|| no_overload("sum", &[sum.get_type()]))?.add(*element)?.into_owned();
        sum = added;
    }
    Ok(CowVal::Owned(sum))
}

fn order(function: &str, one: &dyn Val, other: &dyn Val) -> Result<Ordering, ExecutionError> {
    let types = [one.get_type(), other.get_type()];
    one.as_comparer().ok_or_else(|| no_overload(function, &types))?.compare(other)
}

/// The first element that no other one is better than. One is replaced by another if their order is `worse`.
fn extreme<'b, 'v>(function: &str, arguments: Vec<CowVal<'b, 'v>>, worse: Ordering) -> Answer<'b, 'v> {
    let elements = elements(one(&arguments)?.as_ref())?;
    let (mut best, rest) = match elements.split_first() {
        Some((first, rest)) if first.as_comparer().is_some() => (*first, rest),
        Some((first, _)) => return Err(no_overload(function, &[first.get_type()])),
        None => return Err(failed(function, "there are no elements")),
    };
    for element in rest {
        if order(function, best, *element)? == worse {
            best = *element;
        }
    }
    Ok(CowVal::Owned(best.clone_as_boxed()))
}

fn is_sorted<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let elements = elements(one(&arguments)?.as_ref())?;
    if let Some(first) = elements.first().filter(|first| first.as_comparer().is_none()) {
        return Err(no_overload("isSorted", &[first.get_type()]));
    }
    for pair in elements.windows(2) {
        if order("isSorted", pair[0], pair[1])?.is_gt() {
            return Ok(truth(false));
        }
    }
    Ok(truth(true))
}

/// An element, as an optional value.
fn at_end<'b, 'v>(
    arguments: Vec<CowVal<'b, 'v>>,
    end: for<'a, 'c> fn(Elements<'a, 'c, 'v>) -> Option<&'c (dyn Val + 'v)>,
) -> Answer<'b, 'v> {
    let elements = elements(one(&arguments)?.as_ref())?;
    Ok(CowVal::owned(match end(&elements) {
        Some(element) => CelOptional::of(element.clone_as_boxed()),
        None => CelOptional::none(),
    }))
}

/// The values of the optional values that have one.
fn unwrap<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let mut values: Vec<Box<dyn Val + 'v>> = Vec::new();
    for element in elements(one(&arguments)?.as_ref())? {
        let optional = element.downcast_ref::<CelOptional>();
        let optional = optional.ok_or_else(|| no_overload("optional.unwrap", &[element.get_type()]))?;
        values.extend(optional.option().map(Val::clone_as_boxed));
    }
    Ok(CowVal::owned(CelList::from(values)))
}

/// The first or the last place of an element, counted from 0; -1: it is not there.
fn place<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>, is_last: bool) -> Answer<'b, 'v> {
    let [list, wanted] = two(&arguments)?;
    let elements = elements(list.as_ref())?;
    let is_it = |element: &&(dyn Val + 'v)| element.equals(wanted.as_ref());
    let place = if is_last { elements.iter().rposition(is_it) } else { elements.iter().position(is_it) };
    Ok(CowVal::owned(CelInt::from(place.and_then(|place| i64::try_from(place).ok()).unwrap_or(-1))))
}

/// Whether a list has an element, or a value that is no list is equal to it. It is for attributes that can be lists:
/// Kubernetes 1.36 has it with the feature gate `DRAListTypeAttributes`.
fn includes<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let [target, wanted] = two(&arguments)?;
    if target.get_type().kind() != Kind::List {
        return Ok(truth(target.equals(wanted.as_ref())));
    }
    let elements = elements(target.as_ref())?;
    let is_included = elements.iter().take(INCLUDES_MAX).any(|element| element.equals(wanted.as_ref()));
    if !is_included && elements.len() > INCLUDES_MAX {
        return Err(failed("includes", format!("the list has more than {INCLUDES_MAX} elements")));
    }
    Ok(truth(is_included))
}

fn contains(list: Elements<'_, '_, '_>, wanted: &dyn Val) -> bool {
    list.iter().any(|element| element.equals(wanted))
}

fn contains_all(list: Elements<'_, '_, '_>, wanted: Elements<'_, '_, '_>) -> bool {
    wanted.iter().all(|wanted| contains(list, *wanted))
}

fn compare<'b, 'v>(
    arguments: Vec<CowVal<'b, 'v>>,
    compare: fn(Elements<'_, '_, 'v>, Elements<'_, '_, 'v>) -> bool,
) -> Answer<'b, 'v> {
    let [one, other] = two(&arguments)?;
    Ok(truth(compare(&elements(one.as_ref())?, &elements(other.as_ref())?)))
}
