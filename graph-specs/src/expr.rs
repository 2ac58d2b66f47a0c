//! The expressions of spec files: `config.head_dim ?? hidden / heads`.
//!
//! Numbers, `'text'`, `true`, `false`, `none`, names, `config.key.path`, `list[index]`, `+ - * / % **`,
//! `== != < <= > >=`, `&& || !`, `a ?? b` (b where a is none) and `condition ? a : b`. Nothing else: no
//! functions, no state. A key that the config does not have is `none`, and `none` in arithmetic is `none`, so
//! that one `??` at the end catches any missing part. What a name means is the caller's [`Scope`].

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
    /// Value of `config.path`; [`Value::None`] where the config lacks it.
    fn config(&self, path: &str) -> Value;
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvalError {
    /// A name that the spec does not define.
    #[error("unknown name `{found}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownName {
        /// The name.
        found: String,
        /// The most similar defined one.
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
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
            operators: 0,
        };
        let node = parser.choose()?;
        if parser.rest().is_empty() {
            Ok(Self {
                text: text.to_owned(),
                node,
            })
        } else {
            Err(parser.expected("an operator or the end"))
        }
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Evaluates the expression.
    pub fn eval(&self, scope: &dyn Scope) -> Result<Value, EvalError> {
        eval(&self.node, scope)
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

fn eval(node: &Node, scope: &dyn Scope) -> Result<Value, EvalError> {
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

/// `none` counts as false: an absent key switches a feature off.
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

/// Deepest nesting of parentheses; bounds the recursion on hostile input.
const DEPTH_MAX: usize = 32;

/// Most operators of one expression, whose chains are as deep as they are long. Chosen: far above any
/// shipped file's.
const OPERATORS_MAX: usize = 128;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    operators: usize,
}

impl Parser<'_> {
    fn choose(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.expected("less nesting"));
        }
        let mut node = self.coalesce()?;
        if self.rest().starts_with('?') {
            self.at += 1;
            let yes = self.choose()?;
            self.take(":")?;
            let no = self.choose()?;
            node = Node::Choose(Box::new(node), Box::new(yes), Box::new(no));
        }
        self.depth -= 1;
        Ok(node)
    }

    fn coalesce(&mut self) -> Result<Node, String> {
        let mut parts = vec![self.level(0)?];
        while self.accept("??") {
            self.count_operator()?;
            parts.push(self.level(0)?);
        }
        let folded = parts
            .into_iter()
            .rev()
            .reduce(|second, first| Node::Coalesce(Box::new(first), Box::new(second)));
        folded.ok_or_else(|| self.expected("a value"))
    }

    fn level(&mut self, level: usize) -> Result<Node, String> {
        let Some(operators) = Binary::LEVELS.get(level) else {
            return self.power();
        };
        let mut node = self.level(level + 1)?;
        'operators: loop {
            for (symbol, operator) in *operators {
                // `*` is not the first half of `**`.
                let doubled = *symbol == "*" && self.rest().starts_with("**");
                if !doubled && self.accept(symbol) {
                    self.count_operator()?;
                    let right = self.level(level + 1)?;
                    node = Node::Binary(*operator, Box::new(node), Box::new(right));
                    continue 'operators;
                }
            }
            return Ok(node);
        }
    }

    fn power(&mut self) -> Result<Node, String> {
        let base = self.unary()?;
        if self.accept("**") {
            let exponent = self.unary()?;
            return Ok(Node::Binary(
                Binary::Power,
                Box::new(base),
                Box::new(exponent),
            ));
        }
        Ok(base)
    }

    fn unary(&mut self) -> Result<Node, String> {
        if self.accept("-") {
            return Ok(Node::Unary(Unary::Minus, Box::new(self.indexed()?)));
        }
        if self.accept("!") {
            return Ok(Node::Unary(Unary::Not, Box::new(self.indexed()?)));
        }
        self.indexed()
    }

    fn indexed(&mut self) -> Result<Node, String> {
        let mut node = self.primary()?;
        while self.accept("[") {
            self.count_operator()?;
            let index = self.choose()?;
            self.take("]")?;
            node = Node::Index(Box::new(node), Box::new(index));
        }
        Ok(node)
    }

    fn primary(&mut self) -> Result<Node, String> {
        if self.accept("(") {
            let node = self.choose()?;
            self.take(")")?;
            return Ok(node);
        }
        if self.accept("'") {
            let length = self.text[self.at..]
                .find('\'')
                .ok_or_else(|| self.expected("a closing `'`"))?;
            let text = self.text[self.at..self.at + length].to_owned();
            self.at += length + 1;
            return Ok(Node::Literal(Value::Text(text)));
        }
        let rest = self.rest();
        let length = word_length(rest);
        let word = rest[..length].to_owned();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let number = word
                .parse()
                .map_err(|_| self.expected(&format!("a number, found `{word}`")))?;
            self.at += length;
            return Ok(Node::Literal(Value::Number(number)));
        }
        if word.is_empty() {
            return Err(self.expected("a value"));
        }
        self.at += length;
        Ok(match word.as_str() {
            "none" => Node::Literal(Value::None),
            "true" => Node::Literal(Value::Bool(true)),
            "false" => Node::Literal(Value::Bool(false)),
            _ => match word.strip_prefix("config.") {
                Some(path) => Node::Config(path.to_owned()),
                None => Node::Name(word),
            },
        })
    }

    /// The unread text; white space is skipped first.
    fn rest(&mut self) -> &str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    fn count_operator(&mut self) -> Result<(), String> {
        self.operators += 1;
        if self.operators > OPERATORS_MAX {
            return Err(self.expected("fewer operators"));
        }
        Ok(())
    }

    fn take(&mut self, symbol: &str) -> Result<(), String> {
        if self.accept(symbol) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{symbol}`")))
        }
    }

    fn expected(&mut self, what: &str) -> String {
        self.rest();
        let character = self.text[..self.at].chars().count() + 1;
        format!(
            "expected {what} at character {character} of `{}`",
            self.text
        )
    }
}

/// Length of the name or number that `text` starts with; `1e-5` is one word.
fn word_length(text: &str) -> usize {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    let mut previous = ' ';
    text.find(|c: char| {
        let exponent_sign = number && matches!(previous, 'e' | 'E') && matches!(c, '-' | '+');
        let part = c.is_ascii_alphanumeric() || c == '_' || c == '.' || exponent_sign;
        previous = c;
        !part
    })
    .unwrap_or(text.len())
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
