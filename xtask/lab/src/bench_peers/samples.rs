//! The measurements of a side: one figure per round under each key.

use crate::statistics::median;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// All samples of one side.
#[derive(Default)]
pub(super) struct Samples {
    by_key: BTreeMap<&'static str, Vec<f64>>,
}

impl Samples {
    pub(super) fn add(&mut self, key: &'static str, value: f64) {
        self.by_key.entry(key).or_default().push(value);
    }

    /// Adds the numbers of `measured` under `keys`, which are paths in it; a missing one is an error.
    pub(super) fn add_all(&mut self, measured: &Value, keys: &[&'static str]) -> Result<()> {
        for key in keys {
            let number = number(measured, key);
            self.add(
                key,
                number.with_context(|| format!("a measurement has no `{key}`"))?,
            );
        }
        Ok(())
    }

    /// Adds the number of `measured` under `key`, if there is one.
    pub(super) fn add_found(&mut self, measured: &Value, key: &'static str) {
        if let Some(number) = number(measured, key) {
            self.add(key, number);
        }
    }

    /// The median of the samples; `None` without samples.
    pub(super) fn median(&self, key: &str) -> Option<f64> {
        median(self.by_key.get(key)?)
    }
}

fn number(measured: &Value, key: &str) -> Option<f64> {
    measured.pointer(&format!("/{key}"))?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_figure_is_an_error_unless_it_is_optional() {
        let mut samples = Samples::default();
        let measured = json!({ "load_ms": 1, "prefill_tokens_per_s": { "512": 7.0 } });
        let keys = ["prefill_tokens_per_s/512", "decode_tokens_per_s"];
        let error = samples.add_all(&measured, &keys).unwrap_err();
        assert!(error.to_string().contains("`decode_tokens_per_s`"));
        assert_eq!(samples.median(keys[0]), Some(7.0));
        samples.add_found(&measured, keys[1]);
        assert_eq!(samples.median(keys[1]), None);
    }
}
