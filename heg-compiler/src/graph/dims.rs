//! Binding of an architecture's symbolic values to a config.

use std::cell::RefCell;

use heg_spec::expr::{EvalError, Expr, Scope, Value};
use heg_spec::{Architecture, NamePart, WeightName, nearest};

use crate::error::CompileError;
use heg_ingest::ConfigJson;

/// Evaluates an architecture's expressions against a config, for one layer or for the model as a whole.
pub struct SpecScope<'a> {
    architecture: &'a Architecture,
    config: &'a ConfigJson,
    layer: Option<u32>,
    /// Names being evaluated, to catch those that define each other.
    pending: RefCell<Vec<String>>,
}

impl<'a> SpecScope<'a> {
    /// The scope of layer `layer`, or of the whole model for `None`.
    pub fn new(architecture: &'a Architecture, config: &'a ConfigJson, layer: Option<u32>) -> Self {
        Self {
            architecture,
            config,
            layer,
            pending: RefCell::new(Vec::new()),
        }
    }

    /// Value of an expression.
    pub(crate) fn value(&self, expr: &Expr) -> Result<Value, CompileError> {
        expr.eval(self).map_err(|source| CompileError::Expression {
            architecture: self.architecture.name.clone(),
            expression: expr.text().to_owned(),
            source,
        })
    }

    /// A number, or `None` if the expression is `none`.
    pub(crate) fn number_or_none(&self, expr: &Expr) -> Result<Option<f32>, CompileError> {
        match self.value(expr)? {
            Value::None => Ok(None),
            Value::Number(number) if (number as f32).is_finite() => Ok(Some(number as f32)),
            other => Err(self.unexpected(expr, "a finite number", &other)),
        }
    }

    /// A number.
    pub(crate) fn number(&self, expr: &Expr) -> Result<f32, CompileError> {
        self.number_or_none(expr)?
            .ok_or_else(|| self.unexpected(expr, "a finite number", &Value::None))
    }

    /// A positive number in double precision, finite in single; `None` if the expression is `none`.
    pub(crate) fn positive_or_none(&self, expr: &Expr) -> Result<Option<f64>, CompileError> {
        match self.value(expr)? {
            Value::None => Ok(None),
            Value::Number(n) if n > 0.0 && (n as f32).is_finite() => Ok(Some(n)),
            other => Err(self.unexpected(expr, "a positive number", &other)),
        }
    }

    /// A positive number in double precision, finite in single.
    pub(crate) fn positive(&self, expr: &Expr) -> Result<f64, CompileError> {
        self.positive_or_none(expr)?
            .ok_or_else(|| self.unexpected(expr, "a positive number", &Value::None))
    }

    /// A count from 1 to 2^31 − 1, or `None` if the expression is `none`.
    pub(crate) fn count_or_none(&self, expr: &Expr) -> Result<Option<u32>, CompileError> {
        match self.value(expr)? {
            Value::None => Ok(None),
            Value::Number(n) if n.fract() == 0.0 && (1.0..2_147_483_648.0).contains(&n) => {
                Ok(Some(n as u32))
            }
            other => Err(self.unexpected(expr, "a whole number from 1 to 2147483647", &other)),
        }
    }

    /// A count.
    pub(crate) fn count(&self, expr: &Expr) -> Result<u32, CompileError> {
        self.count_or_none(expr)?.ok_or_else(|| {
            self.unexpected(expr, "a whole number from 1 to 2147483647", &Value::None)
        })
    }

    /// A row number, from 0.
    pub(crate) fn row(&self, expr: &Expr) -> Result<u32, CompileError> {
        match self.value(expr)? {
            Value::Number(n) if n.fract() == 0.0 && (0.0..2_147_483_648.0).contains(&n) => {
                Ok(n as u32)
            }
            other => Err(self.unexpected(expr, "a whole number from 0 to 2147483647", &other)),
        }
    }

    /// Text.
    pub(crate) fn text(&self, expr: &Expr) -> Result<String, CompileError> {
        match self.value(expr)? {
            Value::Text(text) => Ok(text),
            other => Err(self.unexpected(expr, "text", &other)),
        }
    }

    /// A condition: `none` and 0 are false; an absent expression has the value `otherwise`.
    pub(crate) fn truth(&self, expr: Option<&Expr>, otherwise: bool) -> Result<bool, CompileError> {
        let Some(expr) = expr else {
            return Ok(otherwise);
        };
        match self.value(expr)? {
            Value::Bool(truth) => Ok(truth),
            Value::None => Ok(false),
            Value::Number(number) => Ok(number != 0.0),
            other => Err(self.unexpected(expr, "a truth value", &other)),
        }
    }

    /// The name of a weight.
    pub(crate) fn weight_name(&self, name: &WeightName) -> Result<String, CompileError> {
        let parts = name.parts().iter().map(|part| match part {
            NamePart::Text(text) => Ok(text.clone()),
            NamePart::Expr(expr) => match self.value(expr)? {
                Value::Text(text) => Ok(text),
                Value::Number(number) if number.fract() == 0.0 => Ok(number.to_string()),
                other => Err(self.unexpected(expr, "text or a whole number", &other)),
            },
        });
        parts.collect()
    }

    fn unexpected(&self, expr: &Expr, expected: &'static str, found: &Value) -> CompileError {
        CompileError::Value {
            architecture: self.architecture.name.clone(),
            expression: expr.text().to_owned(),
            expected,
            found: match found {
                Value::Number(number) => format!("{number}"),
                Value::Text(text) => format!("'{text}'"),
                Value::None => "nothing".to_owned(),
                other => other.kind().to_owned(),
            },
        }
    }
}

impl Scope for SpecScope<'_> {
    fn name(&self, name: &str) -> Result<Value, EvalError> {
        if name == "layer"
            && let Some(layer) = self.layer
        {
            return Ok(Value::Number(f64::from(layer)));
        }
        let values = &self.architecture.values;
        let Some(expr) = values.get(name) else {
            return Err(EvalError::UnknownName {
                found: name.to_owned(),
                nearest: nearest(name, values.keys().map(String::as_str)).map(str::to_owned),
            });
        };
        if self.pending.borrow().iter().any(|pending| pending == name) {
            return Err(EvalError::Cycle(name.to_owned()));
        }
        self.pending.borrow_mut().push(name.to_owned());
        let value = expr.eval(self);
        self.pending.borrow_mut().pop();
        value
    }

    fn config(&self, path: &str) -> Value {
        self.config.value(path).map_or(Value::None, to_value)
    }
}

fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null | serde_json::Value::Object(_) => Value::None,
        serde_json::Value::Bool(truth) => Value::Bool(*truth),
        serde_json::Value::Number(number) => number.as_f64().map_or(Value::None, Value::Number),
        serde_json::Value::String(text) => Value::Text(text.clone()),
        serde_json::Value::Array(items) => Value::List(items.iter().map(to_value).collect()),
    }
}

/// The dimensions that every model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Hidden size D.
    pub hidden: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads H.
    pub heads: u32,
    /// Key/value heads K.
    pub kv_heads: u32,
    /// Head dimension d.
    pub head_dim: u32,
    /// Vocabulary V.
    pub vocab: u32,
    /// Longest context of the model, in tokens.
    pub context: u32,
}

/// Largest dimension that is accepted: far above any published model, and far below the point where a product of three
/// overflows 64 bits.
const DIMENSION_MAX: u32 = 1 << 21;

impl Dims {
    /// Reads the required values; refuses absurd ones before anything is allocated by them.
    pub fn bind(architecture: &Architecture, config: &ConfigJson) -> Result<Self, CompileError> {
        let scope = SpecScope::new(architecture, config, None);
        let read = |name: &'static str, max: u32| -> Result<u32, CompileError> {
            let expr = architecture
                .values
                .get(name)
                .ok_or_else(|| CompileError::Dimension {
                    name,
                    expected: "a definition in the architecture".to_owned(),
                    found: "none".to_owned(),
                })?;
            let value = scope.count(expr)?;
            if value > max {
                return Err(CompileError::Dimension {
                    name,
                    expected: format!("at most {max}"),
                    found: value.to_string(),
                });
            }
            Ok(value)
        };
        let dims = Self {
            hidden: read("hidden", DIMENSION_MAX)?,
            layers: read("layers", 4096)?,
            heads: read("heads", 4096)?,
            kv_heads: read("kv_heads", 4096)?,
            head_dim: read("head_dim", 4096)?,
            vocab: read("vocab", 1 << 23)?,
            context: read("context", 1 << 26)?,
        };
        if !dims.heads.is_multiple_of(dims.kv_heads) {
            return Err(CompileError::Dimension {
                name: "heads",
                expected: format!("a multiple of the {} key/value heads", dims.kv_heads),
                found: dims.heads.to_string(),
            });
        }
        Ok(dims)
    }
}
