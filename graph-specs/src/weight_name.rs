//! Names of weights in the checkpoint, with expressions between braces: `model.layers.{layer}.mlp.up_proj.weight`.

use serde::{Deserialize, Deserializer, de};

use crate::expr::Expr;

/// The name of a weight, as a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightName {
    parts: Vec<NamePart>,
}

/// A part of a weight's name.
#[derive(Debug, Clone, PartialEq)]
pub enum NamePart {
    /// Text that every name has.
    Text(String),
    /// An expression that gives text or a whole number.
    Expr(Expr),
}

impl WeightName {
    /// Parses a pattern; the error says what is wrong with which expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, inside)) = rest.split_once('{') {
            let Some((expr, after)) = inside.split_once('}') else {
                return Err(format!("expected a closing `}}` in `{text}`"));
            };
            if !before.is_empty() {
                parts.push(NamePart::Text(before.to_owned()));
            }
            parts.push(NamePart::Expr(Expr::parse(expr)?));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(NamePart::Text(rest.to_owned()));
        }
        Ok(Self { parts })
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[NamePart] {
        &self.parts
    }
}

impl<'de> Deserialize<'de> for WeightName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_stand_between_braces() {
        let name = WeightName::parse("a.{layer - 1}.b").unwrap();
        let text = |text: &str| NamePart::Text(text.to_owned());
        let expr = NamePart::Expr(Expr::parse("layer - 1").unwrap());
        assert_eq!(name.parts(), [text("a."), expr, text(".b")]);
        assert_eq!(WeightName::parse("a").unwrap().parts(), [text("a")]);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| WeightName::parse(text).unwrap_err();
        assert_eq!(error("a.{layer"), "expected a closing `}` in `a.{layer`");
        assert_eq!(error("a.{}"), "expected a value at character 1 of ``");
    }
}
