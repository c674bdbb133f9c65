//! The parts of a parsed expression, and names in it.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};

/// The expressions that an expression consists of.
pub(super) fn parts(of: &IdedExpr) -> Vec<&IdedExpr> {
    match &of.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).collect(),
        Expr::Comprehension(of) => {
            vec![&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| of_entry(&entry.expr)).collect(),
        Expr::Struct(of) => of.entries.iter().flat_map(|entry| of_entry(&entry.expr)).collect(),
    }
}

fn of_entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// As [`parts`], to change them.
pub(super) fn parts_mut(of: &mut IdedExpr) -> Vec<&mut IdedExpr> {
    match &mut of.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter_mut().map(AsMut::as_mut).chain(&mut call.args).collect(),
        Expr::Comprehension(of) => {
            vec![&mut of.iter_range, &mut of.accu_init, &mut of.loop_cond, &mut of.loop_step, &mut of.result]
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Map(map) => map.entries.iter_mut().flat_map(|entry| of_entry_mut(&mut entry.expr)).collect(),
        Expr::Struct(of) => of.entries.iter_mut().flat_map(|entry| of_entry_mut(&mut entry.expr)).collect(),
    }
}

fn of_entry_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

/// How many parts an expression has, with those of its parts, and itself.
pub(super) fn size(of: &IdedExpr) -> usize {
    1 + parts(of).into_iter().map(size).sum::<usize>()
}

/// How deeply an expression is nested, as the number of levels.
pub(super) fn depth(of: &IdedExpr) -> usize {
    1 + parts(of).into_iter().map(depth).max().unwrap_or(0)
}

pub(super) fn any(of: &IdedExpr, is_it: &dyn Fn(&Expr) -> bool) -> bool {
    is_it(&of.expr) || parts(of).into_iter().any(|part| any(part, is_it))
}

/// Puts an expression in place of a name, where the name does not stand for something else inside a loop.
pub(super) fn substitute(within: &mut IdedExpr, name: &str, by: &IdedExpr) {
    match &mut within.expr {
        Expr::Ident(other) if other == name => *within = by.clone(),
        Expr::Comprehension(of) if hides(of, name) => {
            substitute(&mut of.iter_range, name, by);
            substitute(&mut of.accu_init, name, by);
        }
        _ => parts_mut(within).into_iter().for_each(|part| substitute(part, name, by)),
    }
}

fn hides(of: &cel::common::ast::ComprehensionExpr, name: &str) -> bool {
    of.iter_var == name || of.accu_var == name || of.iter_var2.as_deref() == Some(name)
}

/// How often a name is used, and whether an expression in its place would be inside a loop that has a name of its own
/// for something the expression names.
pub(super) fn uses(within: &IdedExpr, name: &str, by: &IdedExpr) -> (usize, bool) {
    match &within.expr {
        Expr::Ident(other) => (usize::from(other == name), false),
        Expr::Comprehension(of) if hides(of, name) => {
            let (range, start) = (uses(&of.iter_range, name, by), uses(&of.accu_init, name, by));
            (range.0 + start.0, range.1 || start.1)
        }
        other => {
            let inside: Vec<_> = parts(within).into_iter().map(|part| uses(part, name, by)).collect();
            let count = inside.iter().map(|(count, _)| count).sum();
            let is_hidden = match other {
                Expr::Comprehension(of) if count > 0 => {
                    any(by, &|part| matches!(part, Expr::Ident(name) if hides(of, name)))
                }
                _ => false,
            };
            (count, is_hidden || inside.iter().any(|(_, is_hidden)| *is_hidden))
        }
    }
}
