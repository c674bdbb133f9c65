//! What an evaluation can take at most.
//!
//! Kubernetes' API server refuses expressions that could cost more than 1 000 000 (CELSelectorExpressionMaxCost), but
//! not all that grow large here: there, values are put into lists and lists are joined without a copy. So an evaluation
//! counts the elements that its loops walk through, and the elements and bytes of the values that it makes. An
//! expression that Kubernetes evaluates takes fewer steps: there, each turn of a loop costs four or more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cel::common::types::{CelInt, CelList, CelMap, CelOptional, CelString, DYN_TYPE, INT_TYPE, Kind, Type};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::values::{Answer, Held, Own, argument_count, failed, no_overload};

/// The function that counts the elements and bytes of its first argument, and gives it back.
pub(super) const COUNTED: &str = "@counted";
/// The names of `lists.range`, `replace` and `join` here. They count what they are about to make.
pub(super) const RANGE: &str = "@range";
pub(super) const REPLACE: &str = "@replace";
pub(super) const JOIN: &str = "@join";
/// The variable that counts.
pub(super) const STEPS: &str = "@steps";
/// Elements and bytes in all.
const STEPS_MAX: usize = 500_000;

/// The stack for expressions that are nested deeply, in bytes. Without optimization, a level takes up to 100 KiB.
const STACK: usize = 128 << 20;

/// Runs something that can be nested deeply, on a stack that is large enough. An overflow would end the program.
///
/// # Errors
/// There is no thread for it.
pub(super) fn with_large_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| format!("there is no thread for it: {error}"))?;
        thread.join().map_err(|_| "its thread ended".to_owned())
    })
}

/// How many steps an evaluation has taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps(Arc<AtomicUsize>);

impl Steps {
    fn add(&self, steps: usize) -> Result<(), ExecutionError> {
        let before = self.0.fetch_add(steps.min(STEPS_MAX), Ordering::Relaxed);
        if before.saturating_add(steps) > STEPS_MAX {
            return Err(failed("evaluation", format!("it takes more than {STEPS_MAX} steps")));
        }
        Ok(())
    }
}

impl PartialEq for Steps {
    fn eq(&self, other: &Steps) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Held for Steps {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, STEPS);
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    environment.add_overload(COUNTED, COUNTED, vec![DYN_TYPE, Steps::TYPE.to_owned()], counted)?;
    environment.add_overload(RANGE, RANGE, vec![INT_TYPE, Steps::TYPE.to_owned()], range)?;
    cel::add_overload!(environment, fn replace: (CelString, CelString, CelString, Own<Steps>) -> Result<CelString>,
        name = REPLACE)?;
    cel::add_overload!(environment,
        fn replace_some: (CelString, CelString, CelString, CelInt, Own<Steps>) -> Result<CelString>,
        name = REPLACE)?;
    cel::add_overload!(environment, fn join: (CelList, Own<Steps>) -> Result<CelString>, name = JOIN)?;
    cel::add_overload!(environment, fn join_with: (CelList, CelString, Own<Steps>) -> Result<CelString>, name = JOIN)
}

/// The first argument, and the steps.
fn split<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<(CowVal<'b, 'v>, Steps), ExecutionError> {
    let count = arguments.len();
    let [of, steps]: [CowVal<'b, 'v>; 2] = arguments.try_into().map_err(|_| argument_count(2, count))?;
    let steps = steps.downcast_ref::<Own<Steps>>().map(|of| of.0.clone()).unwrap_or_default();
    Ok((of, steps))
}

fn counted<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let (of, steps) = split(arguments)?;
    steps.add(size(of.as_ref()))?;
    Ok(of)
}

/// The bytes of a text, the elements of a list or a map with what is in them, and 0 of other values. What is too large
/// is not counted to its end.
fn size<'v>(of: &(dyn Val + 'v)) -> usize {
    if let Some(text) = of.downcast_ref::<CelString>() {
        return text.inner().len();
    }
    if let Some(list) = of.downcast_ref::<CelList>() {
        return sum(list.inner().iter());
    }
    if let Some(map) = of.downcast_ref::<CelMap>() {
        return sum(map.inner().values());
    }
    of.downcast_ref::<CelOptional>().and_then(CelOptional::option).map_or(0, size)
}

fn sum<'a, 'v: 'a>(elements: impl Iterator<Item = &'a Box<dyn Val + 'v>>) -> usize {
    let mut sum = 0;
    for element in elements {
        sum += 1 + size(element.as_ref());
        if sum > STEPS_MAX {
            break;
        }
    }
    sum
}

fn replace(
    text: &CelString<'_>,
    from: &CelString<'_>,
    to: &CelString<'_>,
    steps: &Own<Steps>,
) -> Result<CelString<'static>, ExecutionError> {
    replace_some(text, from, to, &CelInt::from(-1), steps)
}

/// A negative number means all.
fn replace_some(
    text: &CelString<'_>,
    from: &CelString<'_>,
    to: &CelString<'_>,
    max: &CelInt,
    steps: &Own<Steps>,
) -> Result<CelString<'static>, ExecutionError> {
    let max = usize::try_from(*max.inner()).unwrap_or(usize::MAX);
    let count = text.inner().matches(from.inner()).count().min(max);
    steps.0.add(text.inner().len().saturating_add(count.saturating_mul(to.inner().len())))?;
    Ok(text.inner().replacen(from.inner(), to.inner(), count).into())
}

fn join(list: &CelList<'_>, steps: &Own<Steps>) -> Result<CelString<'static>, ExecutionError> {
    join_with(list, &CelString::from(""), steps)
}

fn join_with(
    list: &CelList<'_>,
    separator: &CelString<'_>,
    steps: &Own<Steps>,
) -> Result<CelString<'static>, ExecutionError> {
    steps.0.add(size(list).saturating_add(list.inner().len().saturating_mul(separator.inner().len())))?;
    let texts = list.inner().iter().map(|of| match of.downcast_ref::<CelString>() {
        Some(text) => Ok(text.inner()),
        None => Err(no_overload("join", &[of.get_type()])),
    });
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join(separator.inner()).into())
}

/// The integers from 0 up to, but without, the first argument. A negative one gives none.
fn range<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let (end, steps) = split(arguments)?;
    let end = end.downcast_ref::<CelInt>().map_or(0, |end| *end.inner());
    steps.add(usize::try_from(end).unwrap_or(0))?;
    Ok(CowVal::owned(CelList::from((0..end).map(|of| Box::new(CelInt::from(of)) as Box<dyn Val>).collect::<Vec<_>>())))
}
