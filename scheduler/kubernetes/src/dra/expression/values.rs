//! Values of types that CEL itself does not have, and what the functions for all values share.

use std::any::Any;
use std::fmt::Debug;

use cel::ExecutionError;
use cel::common::types::{Kind, Type};
use cel::common::value::{CowVal, StaticVal, Val};

/// The result of a function that expressions can call.
pub(super) type Answer<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// What values of a type of Kubernetes hold.
pub(super) trait Held: Clone + Debug + PartialEq + Send + Sync + 'static {
    const TYPE: &'static Type;
}

/// A value of a type of Kubernetes. Two are equal if what they hold is.
#[derive(Clone, Debug)]
pub(super) struct Own<T>(pub(super) T);

impl<T: Held> Val for Own<T> {
    fn get_type(&self) -> &Type {
        T::TYPE
    }

    fn cel_type() -> &'static Type {
        T::TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Own<T>>().is_some_and(|other| self.0 == other.0)
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

impl<T: Held> StaticVal for Own<T> {}

/// The function `==`. A value of a type of Kubernetes equals values of its type or none, and the left one decides, as
/// in Kubernetes: with any other type there on the right it is an error, with it on the right the result is false.
pub(super) fn equals<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let [left, right] = arguments.as_slice() else { return Err(argument_count(2, arguments.len())) };
    let types = [left.get_type(), right.get_type()];
    let [is_own, is_null] = [types[0].kind() == Kind::Opaque, types[1].kind() == Kind::NullType];
    if is_own && !is_null && types[0] != types[1] {
        return Err(no_overload("_==_", &types));
    }
    let are_maps = types.iter().all(|of| of.kind() == Kind::Map);
    Ok(truth(left.equals(right.as_ref()) || are_maps && right.equals(left.as_ref())))
}

/// The elements of a list, or the keys of a map.
pub(super) fn elements<'b, 'v>(list: &'b (dyn Val + 'v)) -> Result<Vec<&'b (dyn Val + 'v)>, ExecutionError> {
    let got = || list.get_type().name().to_owned();
    let list = list.as_iterable().ok_or_else(|| ExecutionError::UnexpectedType { got: got(), want: "list".to_owned() });
    let mut rest = list?.iter();
    Ok(std::iter::from_fn(|| rest.next()).collect())
}

pub(super) fn truth<'b, 'v>(value: bool) -> CowVal<'b, 'v> {
    CowVal::owned(cel::common::types::CelBool::from(value))
}

pub(super) fn argument_count(expected: usize, actual: usize) -> ExecutionError {
    ExecutionError::InvalidArgumentCount { expected, actual }
}

pub(super) fn no_overload(function: &str, types: &[&Type]) -> ExecutionError {
    ExecutionError::no_such_overload(function, types.iter().map(|of| of.name().to_owned()).collect())
}

pub(super) fn failed(function: &str, why: impl ToString) -> ExecutionError {
    ExecutionError::function_error(function, why)
}
