//! The expressions of spec files: `config.head_dim ?? hidden / heads`.
//!
//! Numbers, `'text'`, `true`, `false`, `none`, names, `config.key.path`, `list[index]`, `+ - * / % **`,
//! `== != < <= > >=`, `&& || !`, `a ?? b` (b where a is none) and `condition ? a : b`. Nothing else: no functions, no
//! state. `+` adds numbers, and text or numbers to text. A key that the config does not have is `none`, and `none` in arithmetic is `none`, so that one `??` at the
//! end catches any missing part. The caller's [`Scope`] gives names their meaning.

mod eval;
mod parse;

use serde::{Deserialize, Deserializer, de};
use thiserror::Error;

/// A value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Absent.
    None,
    /// A number; integers are exact up to 2^53.
    Number(f64),
    /// Text.
    Text(String),
    /// A truth value.
    Bool(bool),
    /// A list, as config files have them.
    List(Vec<Value>),
}

impl Value {
    /// Name of the value's type, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::Bool(_) => "a truth value",
            Self::List(_) => "a list",
        }
    }
}

/// Resolves the names of an expression.
pub trait Scope {
    /// Value of a plain name such as `hidden` or `layer`.
    fn name(&self, name: &str) -> Result<Value, EvalError>;
    /// Value of `config.path`; [`Value::None`] if the config lacks it.
    fn config(&self, path: &str) -> Value;
}

/// Reasons why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvalError {
    /// A name that the spec does not define.
    #[error("unknown name `{found}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownName {
        /// The name.
        found: String,
        /// The most similar defined name.
        nearest: Option<String>,
    },
    /// Names that define each other.
    #[error("`{0}` is defined by itself")]
    Cycle(String),
    /// An operand of the wrong type.
    #[error("`{operator}` needs {expected}, found {found}")]
    Type {
        /// Operator.
        operator: &'static str,
        /// Expected type.
        expected: &'static str,
        /// Found type.
        found: &'static str,
    },
}

/// A parsed expression, with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    text: String,
    node: Node,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Literal(Value),
    Name(String),
    Config(String),
    Index(Box<Node>, Box<Node>),
    Unary(Unary, Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    Coalesce(Box<Node>, Box<Node>),
    Choose(Box<Node>, Box<Node>, Box<Node>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unary {
    Minus,
    Not,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
}

impl Binary {
    /// Operators of one binding strength, weakest first; [`Binary::Power`] binds strongest.
    const LEVELS: [&'static [(&'static str, Self)]; 6] = [
        &[("||", Self::Or)],
        &[("&&", Self::And)],
        &[("==", Self::Equal), ("!=", Self::NotEqual)],
        &[
            ("<=", Self::LessEqual),
            (">=", Self::GreaterEqual),
            ("<", Self::Less),
            (">", Self::Greater),
        ],
        &[("+", Self::Add), ("-", Self::Subtract)],
        &[
            ("*", Self::Multiply),
            ("/", Self::Divide),
            ("%", Self::Remainder),
        ],
    ];

    fn symbol(self) -> &'static str {
        Self::LEVELS
            .iter()
            .flat_map(|level| level.iter())
            .find(|(_, operator)| *operator == self)
            .map_or("**", |(symbol, _)| symbol)
    }
}

impl Expr {
    /// Parses `text`; the error says what was expected and at which character.
    pub fn parse(text: &str) -> Result<Self, String> {
        let node = parse::parse(text)?;
        let text = text.to_owned();
        Ok(Self { text, node })
    }

    /// The expression as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Evaluates the expression.
    pub fn eval(&self, scope: &dyn Scope) -> Result<Value, EvalError> {
        eval::eval(&self.node, scope)
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sample;

    impl Scope for Sample {
        fn name(&self, name: &str) -> Result<Value, EvalError> {
            match name {
                "hidden" => Ok(Value::Number(64.0)),
                "layer" => Ok(Value::Number(1.0)),
                _ => Err(EvalError::UnknownName {
                    found: name.to_owned(),
                    nearest: None,
                }),
            }
        }

        fn config(&self, path: &str) -> Value {
            match path {
                "kinds" => Value::List(vec![Value::Text("a".into()), Value::Text("b".into())]),
                "rope.factor" => Value::Number(8.0),
                _ => Value::None,
            }
        }
    }

    fn check(text: &str, expected: Value) {
        let value = Expr::parse(text).unwrap().eval(&Sample).unwrap();
        assert_eq!(value, expected, "{text}");
    }

    #[test]
    fn arithmetic_binds_as_usual() {
        check("2 + 3 * 4", Value::Number(14.0));
        check("(2 + 3) * 4 - 1", Value::Number(19.0));
        check("hidden ** -0.5", Value::Number(0.125));
        check("1e-5 * 2", Value::Number(2e-5));
        check("(layer + 1) % 2 == 0", Value::Bool(true));
    }

    #[test]
    fn absent_keys_fall_back() {
        check("config.missing ?? hidden / 4", Value::Number(16.0));
        check(
            "config.missing * 2 ?? config.rope.factor",
            Value::Number(8.0),
        );
        check("config.missing ? 1 : 2", Value::Number(2.0));
        check(
            "config.kinds[7] ?? 'none of them'",
            Value::Text("none of them".into()),
        );
    }

    #[test]
    fn layers_choose() {
        check(
            "config.kinds[layer] == 'b' ? 32 : none",
            Value::Number(32.0),
        );
        check("config.kinds[0] == 'b' ? 32 : none", Value::None);
        check("!(1 < 2) || 2 >= 2 && true", Value::Bool(true));
    }

    #[test]
    fn text_is_joined() {
        check("'layer.' + (layer + 1)", Value::Text("layer.2".into()));
        check("'a' + config.kinds[1]", Value::Text("ab".into()));
        check("'a' + config.missing", Value::None);
        let number_first = Expr::parse("1 + 'a'").unwrap().eval(&Sample);
        let expected = "`+` needs numbers, found text";
        assert_eq!(number_first.unwrap_err().to_string(), expected);
    }

    #[test]
    fn mistakes_are_placed() {
        let error = |text: &str| Expr::parse(text).unwrap_err();
        assert_eq!(
            error("hidden / "),
            "expected a value at character 10 of `hidden / `"
        );
        assert_eq!(error("(1 + 2"), "expected `)` at character 7 of `(1 + 2`");
        assert_eq!(
            error("1 2"),
            "expected an operator or the end at character 3 of `1 2`"
        );
        assert!(error(&"(".repeat(100)).contains("less nesting"));
        let long = "1 + ".repeat(200);
        assert!(error(&long).starts_with("expected fewer operators at character 517 of"));
    }

    #[test]
    fn types_are_checked() {
        let value = Expr::parse("'a' * 2").unwrap().eval(&Sample);
        assert_eq!(
            value.unwrap_err().to_string(),
            "`*` needs numbers, found text"
        );
    }
}
