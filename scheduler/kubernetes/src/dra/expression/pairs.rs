//! Loops over a list or a map with two variables: CEL's library of two-variable comprehensions.
//!
//! The first variable is the place in the list, counted from 0, or the key in the map; the second is the value. Such a
//! loop becomes one over pairs, with a variable that no source can name.

use std::collections::HashMap;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, MapEntryExpr,
    MapExpr, operators,
};
use cel::common::types::{CelInt, CelList, CelMap, CelMapKey, DYN_TYPE, Kind};
use cel::common::value::{CowVal, Val};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env};

use super::parts::substitute;
use super::values::{Answer, argument_count, elements, failed, no_overload};

/// The list of the pairs of a list or a map.
const PAIRS: &str = "@pairs";
/// The map with the entries of all maps of a list.
const MERGED: &str = "@merged";
const RESULT: &str = "@result";

/// What a loop gives.
#[derive(Clone, Copy)]
enum Gives {
    All,
    Exists,
    ExistsOne,
    List,
    /// A map with the same keys.
    Map,
    /// A map with the entries of the maps that the last argument is.
    Entries,
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    let loops = [
        ("all", 3, Gives::All),
        ("exists", 3, Gives::Exists),
        ("existsOne", 3, Gives::ExistsOne),
        ("exists_one", 3, Gives::ExistsOne),
        ("transformList", 3, Gives::List),
        ("transformList", 4, Gives::List),
        ("transformMap", 3, Gives::Map),
        ("transformMap", 4, Gives::Map),
        ("transformMapEntry", 3, Gives::Entries),
        ("transformMapEntry", 4, Gives::Entries),
    ];
    for (name, arguments, gives) in loops {
        environment.add_macro(Macro::receiver(name, arguments, move |helper, target, arguments| {
            target.take().map(|target| expanded(helper, target, std::mem::take(arguments), gives)).transpose()
        }))?;
    }
    environment.add_overload(PAIRS, PAIRS, vec![DYN_TYPE], pairs)?;
    environment.add_overload(MERGED, MERGED, vec![DYN_TYPE], merged)
}

/// The loop over `target`. The arguments are two names, a condition if there are four, and an expression.
fn expanded(
    helper: &mut MacroExprHelper<'_>,
    target: IdedExpr,
    mut arguments: Vec<IdedExpr>,
    gives: Gives,
) -> Result<IdedExpr, ParseError> {
    let mut of_pair = arguments.split_off(2);
    let mut names = Vec::new();
    for argument in arguments {
        match argument.expr {
            Expr::Ident(name) if names.contains(&name) => {
                return Err(helper.new_error(argument.id, format!("duplicate variable name: {name}")));
            }
            Expr::Ident(name) => names.push(name),
            _ => return Err(helper.new_error(argument.id, "a variable must be a simple name")),
        }
    }
    let range = call(helper, PAIRS, vec![target]);
    let pair = format!("@pair{}", range.id);
    if let Some(value) = of_pair.pop_if(|_| matches!(gives, Gives::Map)) {
        let entry = MapEntryExpr { key: name(helper, &names[0]), value, optional: false };
        let entry = IdedEntryExpr { id: range.id, expr: EntryExpr::MapEntry(entry) };
        of_pair.push(helper.next_expr(Expr::Map(MapExpr { entries: vec![entry] })));
    }
    for (place, name_of_part) in names.iter().enumerate() {
        let place = int(helper, place as i64);
        let pair = name(helper, &pair);
        let part = call(helper, operators::INDEX, vec![pair, place]);
        of_pair.iter_mut().for_each(|of| substitute(of, name_of_part, &part));
    }
    let of_loop = looped(helper, range, pair, of_pair, gives);
    Ok(match gives {
        Gives::Map | Gives::Entries => call(helper, MERGED, vec![of_loop]),
        _ => of_loop,
    })
}

/// As the macros of CEL for one variable expand.
fn looped(
    helper: &mut MacroExprHelper<'_>,
    iter_range: IdedExpr,
    iter_var: String,
    mut of_pair: Vec<IdedExpr>,
    gives: Gives,
) -> IdedExpr {
    let last = of_pair.pop().unwrap_or_default();
    let result = name(helper, RESULT);
    let truth = |helper: &mut MacroExprHelper<'_>, value: bool| {
        helper.next_expr(Expr::Literal(LiteralValue::Boolean(value.into())))
    };
    let (accu_init, loop_cond, loop_step, result) = match gives {
        Gives::All => {
            let goes_on = call(helper, operators::NOT_STRICTLY_FALSE, vec![result.clone()]);
            let step = call(helper, operators::LOGICAL_AND, vec![result.clone(), last]);
            (truth(helper, true), goes_on, step, result)
        }
        Gives::Exists => {
            let is_not_found = call(helper, operators::LOGICAL_NOT, vec![result.clone()]);
            let goes_on = call(helper, operators::NOT_STRICTLY_FALSE, vec![is_not_found]);
            let step = call(helper, operators::LOGICAL_OR, vec![result.clone(), last]);
            (truth(helper, false), goes_on, step, result)
        }
        Gives::ExistsOne => {
            let one = int(helper, 1);
            let more = call(helper, operators::ADD, vec![result.clone(), one.clone()]);
            let step = call(helper, operators::CONDITIONAL, vec![last, more, result.clone()]);
            let is_one = call(helper, operators::EQUALS, vec![result, one]);
            (int(helper, 0), truth(helper, true), step, is_one)
        }
        Gives::List | Gives::Map | Gives::Entries => {
            let added = helper.next_expr(Expr::List(ListExpr::new(vec![last])));
            let longer = call(helper, operators::ADD, vec![result.clone(), added]);
            let step = match of_pair.pop() {
                Some(condition) => call(helper, operators::CONDITIONAL, vec![condition, longer, result.clone()]),
                None => longer,
            };
            let empty = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
            (empty, truth(helper, true), step, result)
        }
    };
    let of_loop = ComprehensionExpr {
        iter_range,
        iter_var,
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init,
        loop_cond,
        loop_step,
        result,
    };
    helper.next_expr(Expr::Comprehension(Box::new(of_loop)))
}

fn call(helper: &mut MacroExprHelper<'_>, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }))
}

fn name(helper: &mut MacroExprHelper<'_>, name: &str) -> IdedExpr {
    helper.next_expr(Expr::Ident(name.to_owned()))
}

fn int(helper: &mut MacroExprHelper<'_>, value: i64) -> IdedExpr {
    helper.next_expr(Expr::Literal(LiteralValue::Int(value.into())))
}

fn pairs<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let [of] = arguments.as_slice() else { return Err(argument_count(1, arguments.len())) };
    let kind = of.get_type().kind();
    if !matches!(kind, Kind::List | Kind::Map) {
        return Err(no_overload("a loop with two variables", &[of.get_type()]));
    }
    let mut pairs: Vec<Box<dyn Val + 'v>> = Vec::new();
    for (place, element) in elements(of.as_ref())?.into_iter().enumerate() {
        let pair: Vec<Box<dyn Val + 'v>> = if kind == Kind::List {
            vec![Box::new(CelInt::from(place as i64)), element.clone_as_boxed()]
        } else {
            let map = of.as_indexer().ok_or_else(|| no_overload(PAIRS, &[of.get_type()]))?;
            vec![element.clone_as_boxed(), map.get(element)?.into_owned()]
        };
        pairs.push(Box::new(CelList::from(pair)));
    }
    Ok(CowVal::owned(CelList::from(pairs)))
}

fn merged<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Answer<'b, 'v> {
    let [list] = arguments.as_slice() else { return Err(argument_count(1, arguments.len())) };
    let mut merged: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
    for map in elements(list.as_ref())? {
        let map = map.downcast_ref::<CelMap>().ok_or_else(|| no_overload("transformMapEntry", &[map.get_type()]))?;
        for (key, value) in map.inner() {
            if merged.insert(key.clone(), value.clone_as_boxed()).is_some() {
                return Err(failed("transformMapEntry", format!("two entries have the key {key:?}")));
            }
        }
    }
    Ok(CowVal::owned(CelMap::from(merged)))
}
