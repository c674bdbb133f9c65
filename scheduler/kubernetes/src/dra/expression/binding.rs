//! `cel.bind(name, value, expression)`: the expression with the value in place of the name.

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::parser::{Macro, MacroExprHelper};
use cel::{DeclarationError, Env};

use super::parts::{any, size, substitute, uses};

/// By so many parts an expression can grow where values are put in place of a name.
const GROWTH_MAX: usize = 500;

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    environment.add_macro(Macro::receiver("bind", 3, |helper, target, arguments| {
        let is_of_cel = matches!(target.as_ref().map(|of| &of.expr), Some(Expr::Ident(name)) if name == "cel");
        let name = match arguments.first() {
            Some(first) if is_of_cel => match &first.expr {
                Expr::Ident(name) => name.clone(),
                _ => return Err(helper.new_error(first.id, "cel.bind() needs a name")),
            },
            _ => return Ok(None),
        };
        let (Some(mut result), Some(value)) = (arguments.pop(), arguments.pop()) else { return Ok(None) };
        if !can_be_put_in_place(&name, &value, &result) {
            return Ok(Some(evaluated_first(helper, name, value, result)));
        }
        substitute(&mut result, &name, &value);
        Ok(Some(result))
    }))
}

/// Then a value that fails does so only where the name is used, as in Kubernetes. A value with a loop is evaluated
/// once, even if the name is not used, as evaluating it at each use could take long.
fn can_be_put_in_place(name: &str, value: &IdedExpr, result: &IdedExpr) -> bool {
    let (count, is_hidden) = uses(result, name, value);
    !is_hidden
        && count.saturating_mul(size(value)) <= GROWTH_MAX
        && !any(value, &|part| matches!(part, Expr::Comprehension(_)))
}

/// As in CEL's own implementation, this is a loop over nothing, whose accumulator has the name.
fn evaluated_first(helper: &mut MacroExprHelper<'_>, name: String, value: IdedExpr, result: IdedExpr) -> IdedExpr {
    let bound = ComprehensionExpr {
        iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.clone(),
        accu_init: value,
        loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: helper.next_expr(Expr::Ident(name)),
        result,
    };
    helper.next_expr(Expr::Comprehension(Box::new(bound)))
}
