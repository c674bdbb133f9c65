//! Makes a parsed expression one that can be evaluated as Kubernetes does, where CEL's crate does it otherwise.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, operators};

use super::limits::{COUNTED, JOIN, RANGE, REPLACE, STEPS};
use super::parts::parts_mut;
use super::patterns::MATCHES;

/// The name of `==` here.
pub(super) const EQUALS: &str = "@equals";

/// Changes an expression and its parts:
/// - loops count what they walk through; lists, maps and some functions the values that they make,
/// - `==`, `matches`, `replace`, `join` and `lists.range` become functions of ours.
pub(super) fn prepare(expression: &mut IdedExpr) {
    parts_mut(expression).into_iter().for_each(prepare);
    match &mut expression.expr {
        Expr::Comprehension(of) if !matches!(&of.iter_range.expr, Expr::List(list) if list.elements.is_empty()) => {
            count(&mut of.iter_range);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(count_value),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    count_value(&mut entry.value);
                }
            }
        }
        Expr::Call(call) => match call.func_name.as_str() {
            operators::EQUALS => EQUALS.clone_into(&mut call.func_name),
            "matches" => MATCHES.clone_into(&mut call.func_name),
            "range" if is_of_lists(call) && call.args.len() == 1 => {
                call.target = None;
                counts_itself(call, RANGE, expression.id);
            }
            operators::ADD if !adds_to_result(call) => count(expression),
            "replace" if matches!(call.args.len(), 2 | 3) => counts_itself(call, REPLACE, expression.id),
            "join" if matches!(call.args.len(), 0 | 1) => counts_itself(call, JOIN, expression.id),
            "format" => count(expression),
            _ => {}
        },
        _ => {}
    }
}

/// Makes a call one of a function of ours that counts. A target becomes its first argument.
fn counts_itself(call: &mut CallExpr, function: &str, id: u64) {
    function.clone_into(&mut call.func_name);
    let target = call.target.take().map(|target| *target);
    call.args.splice(0..0, target);
    call.args.push(steps(id));
}

fn is_of_lists(call: &CallExpr) -> bool {
    matches!(call.target.as_ref().map(|of| &of.expr), Some(Expr::Ident(name)) if name == "lists")
}

/// Whether a loop adds to its result. CEL's crate evaluates it quickly as it is.
fn adds_to_result(call: &CallExpr) -> bool {
    matches!(call.args.first().map(|of| &of.expr), Some(Expr::Ident(name)) if name.starts_with('@'))
}

fn count_value(of: &mut IdedExpr) {
    if !matches!(of.expr, Expr::Literal(_)) {
        count(of);
    }
}

fn count(expression: &mut IdedExpr) {
    let id = expression.id;
    let args = vec![std::mem::take(expression), steps(id)];
    *expression = IdedExpr { id, expr: Expr::Call(CallExpr { func_name: COUNTED.to_owned(), target: None, args }) };
}

fn steps(id: u64) -> IdedExpr {
    IdedExpr { id, expr: Expr::Ident(STEPS.to_owned()) }
}
