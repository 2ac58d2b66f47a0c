//! Evaluates a parsed expression.

use super::{Binary, EvalError, Node, Scope, Unary, Value};

pub(super) fn eval(node: &Node, scope: &dyn Scope) -> Result<Value, EvalError> {
    Ok(match node {
        Node::Literal(value) => value.clone(),
        Node::Name(name) => scope.name(name)?,
        Node::Config(path) => scope.config(path),
        Node::Index(list, index) => match (eval(list, scope)?, eval(index, scope)?) {
            (Value::List(items), Value::Number(index)) if index >= 0.0 => {
                items.get(index as usize).cloned().unwrap_or(Value::None)
            }
            (Value::None, _) | (Value::List(_), Value::Number(_)) => Value::None,
            (Value::List(_), other) => return Err(mismatch("[ ]", "a number", &other)),
            (other, _) => return Err(mismatch("[ ]", "a list", &other)),
        },
        Node::Unary(operator, operand) => match (operator, eval(operand, scope)?) {
            (_, Value::None) => Value::None,
            (Unary::Minus, Value::Number(number)) => Value::Number(-number),
            (Unary::Not, Value::Bool(truth)) => Value::Bool(!truth),
            (Unary::Minus, other) => return Err(mismatch("-", "a number", &other)),
            (Unary::Not, other) => return Err(mismatch("!", "a truth value", &other)),
        },
        Node::Coalesce(first, second) => match eval(first, scope)? {
            Value::None => eval(second, scope)?,
            value => value,
        },
        Node::Choose(condition, yes, no) => match truth("?", &eval(condition, scope)?)? {
            true => eval(yes, scope)?,
            false => eval(no, scope)?,
        },
        Node::Binary(operator, left, right) => {
            binary(*operator, eval(left, scope)?, eval(right, scope)?)?
        }
    })
}

fn binary(operator: Binary, left: Value, right: Value) -> Result<Value, EvalError> {
    match operator {
        Binary::Equal => return Ok(Value::Bool(left == right)),
        Binary::NotEqual => return Ok(Value::Bool(left != right)),
        Binary::And => return Ok(Value::Bool(truth("&&", &left)? && truth("&&", &right)?)),
        Binary::Or => return Ok(Value::Bool(truth("||", &left)? || truth("||", &right)?)),
        _ => {}
    }
    let (a, b) = match (&left, &right) {
        (Value::Number(a), Value::Number(b)) => (*a, *b),
        (Value::Text(a), Value::Text(b)) if operator == Binary::Add => {
            return Ok(Value::Text(format!("{a}{b}")));
        }
        (Value::Text(a), Value::Number(b)) if operator == Binary::Add => {
            return Ok(Value::Text(format!("{a}{b}")));
        }
        (Value::None, _) | (_, Value::None) => return Ok(Value::None),
        (Value::Number(_), other) | (other, _) => {
            return Err(mismatch(operator.symbol(), "numbers", other));
        }
    };
    Ok(match operator {
        Binary::Less => Value::Bool(a < b),
        Binary::LessEqual => Value::Bool(a <= b),
        Binary::Greater => Value::Bool(a > b),
        Binary::GreaterEqual => Value::Bool(a >= b),
        Binary::Add => Value::Number(a + b),
        Binary::Subtract => Value::Number(a - b),
        Binary::Multiply => Value::Number(a * b),
        Binary::Divide => Value::Number(a / b),
        Binary::Remainder => Value::Number(a.rem_euclid(b)),
        Binary::Power | Binary::Or | Binary::And | Binary::Equal | Binary::NotEqual => {
            Value::Number(a.powf(b))
        }
    })
}

/// Converts to a bool. `none` counts as false: an absent key switches a feature off.
fn truth(operator: &'static str, value: &Value) -> Result<bool, EvalError> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        Value::None => Ok(false),
        Value::Number(number) => Ok(*number != 0.0),
        other => Err(mismatch(operator, "a truth value", other)),
    }
}

fn mismatch(operator: &'static str, expected: &'static str, found: &Value) -> EvalError {
    EvalError::Type {
        operator,
        expected,
        found: found.kind(),
    }
}
