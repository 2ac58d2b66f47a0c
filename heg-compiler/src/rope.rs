//! Rotary tables: cosines and sines of every position, with the frequency scalings in use.
//!
//! Frequencies are rounded to f32 and multiplied by the position in f32, like the reference implementation (Hugging
//! Face transformers, `modeling_rope_utils.py`), so that long contexts agree with it; cosines are then computed in
//! double precision by a portable library, so that every machine writes the same bytes.

use heg_spec::architecture::Rope;

use crate::error::CompileError;
use crate::graph::SpecScope;
use heg_ingest::ConfigJson;

/// Two tables of shape [rows, width], little-endian f32, row = position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RopeBytes {
    pub(crate) rows: u32,
    pub(crate) width: u32,
    pub(crate) cos: Vec<u8>,
    pub(crate) sin: Vec<u8>,
}

/// Frequencies of each pair, and a factor on cosines and sines.
#[derive(Debug, Clone, PartialEq)]
struct Frequencies {
    inverse: Vec<f64>,
    amplitude: f64,
}

/// Builds the table of `rope` for `rows` positions.
pub(crate) fn rope_table(
    rope: &Rope,
    scope: &SpecScope<'_>,
    config: &ConfigJson,
    rows: u32,
) -> Result<RopeBytes, CompileError> {
    let theta = scope.positive(&rope.theta)?;
    let dim = scope.count(&rope.dim)?;
    let plain = Frequencies {
        inverse: (0..dim / 2)
            .map(|pair| libm::pow(theta, -f64::from(2 * pair) / f64::from(dim)))
            .collect(),
        amplitude: 1.0,
    };
    let scaling = rope.scaling.as_ref();
    let scaling = scaling.filter(|key| config.value(key).is_some());
    let frequencies = match scaling {
        None => plain,
        Some(key) => scaled(
            plain,
            &Scaling {
                config,
                key,
                theta,
                dim,
                rows,
            },
        )?,
    };
    frequencies.check(scaling.map_or(rope.theta.text(), String::as_str), rows)?;
    Ok(tabulate(&frequencies, rows))
}

fn tabulate(frequencies: &Frequencies, rows: u32) -> RopeBytes {
    let width = frequencies.inverse.len();
    let bytes = rows as usize * width * size_of::<f32>();
    let (mut cos, mut sin) = (Vec::with_capacity(bytes), Vec::with_capacity(bytes));
    for row in 0..rows {
        for inverse in &frequencies.inverse {
            let angle = f64::from(row as f32 * *inverse as f32);
            let (s, c) = libm::sincos(angle);
            cos.extend_from_slice(&((c * frequencies.amplitude) as f32).to_le_bytes());
            sin.extend_from_slice(&((s * frequencies.amplitude) as f32).to_le_bytes());
        }
    }
    RopeBytes {
        rows,
        width: width as u32,
        cos,
        sin,
    }
}

/// The config's scaling, with the values that it is applied to.
struct Scaling<'a> {
    config: &'a ConfigJson,
    key: &'a str,
    theta: f64,
    dim: u32,
    rows: u32,
}

fn scaled(plain: Frequencies, scaling: &Scaling<'_>) -> Result<Frequencies, CompileError> {
    let kind = ["rope_type", "type"]
        .iter()
        .find_map(|name| scaling.config.text(&format!("{}.{name}", scaling.key)))
        .unwrap_or("default");
    match kind {
        "default" => Ok(plain),
        "linear" => {
            let factor = scaling.positive("factor")?;
            Ok(plain.map(|_, inverse| inverse / factor))
        }
        "dynamic" => scaling.dynamic(plain),
        "llama3" => scaling.llama3(plain),
        "yarn" => scaling.yarn(plain),
        "longrope" | "su" => scaling.longrope(plain),
        other => Err(CompileError::RopeScaling {
            key: scaling.key.to_owned(),
            expected: "one of `default`, `linear`, `dynamic`, `llama3`, `yarn`, `longrope`"
                .to_owned(),
            found: format!("`{other}`"),
        }),
    }
}

impl Frequencies {
    /// Refuses a scaling whose angles or factor are infinite: numbers that are plausible one by one can give such.
    fn check(&self, key: &str, rows: u32) -> Result<(), CompileError> {
        let endless = |inverse: &f64| !(rows as f32 * *inverse as f32).is_finite();
        let found = match self.inverse.iter().find(|inverse| endless(inverse)) {
            Some(inverse) => format!("a frequency of {inverse:.1e}"),
            None if (self.amplitude as f32).is_finite() => return Ok(()),
            None => format!("a factor of {:.1e}", self.amplitude),
        };
        Err(CompileError::RopeScaling {
            key: key.to_owned(),
            expected: "finite angles".to_owned(),
            found,
        })
    }

    fn map(mut self, change: impl Fn(usize, f64) -> f64) -> Self {
        for (pair, inverse) in self.inverse.iter_mut().enumerate() {
            *inverse = change(pair, *inverse);
        }
        self
    }
}

impl Scaling<'_> {
    /// NTK-aware growth of the base; no change within the model's own context.
    fn dynamic(&self, plain: Frequencies) -> Result<Frequencies, CompileError> {
        let (factor, original) = (self.positive("factor")?, self.original_context()?);
        let rows = f64::from(self.rows);
        if rows <= original {
            return Ok(plain);
        }
        let dim = f64::from(self.dim);
        let growth = factor * rows / original - (factor - 1.0);
        let theta = self.theta * libm::pow(growth, dim / (dim - 2.0));
        Ok(plain.map(|pair, _| libm::pow(theta, -((2 * pair) as f64) / dim)))
    }

    /// Long wavelengths are slowed down by `factor`, short ones kept, and those between blended.
    fn llama3(&self, plain: Frequencies) -> Result<Frequencies, CompileError> {
        let factor = self.positive("factor")?;
        let (low, high) = (
            self.positive("low_freq_factor")?,
            self.positive("high_freq_factor")?,
        );
        let original = self.positive("original_max_position_embeddings")?;
        Ok(plain.map(|_, inverse| {
            let wavelength = 2.0 * std::f64::consts::PI / inverse;
            if wavelength > original / low {
                inverse / factor
            } else if wavelength < original / high {
                inverse
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * inverse / factor + smooth * inverse
            }
        }))
    }

    /// YaRN (arXiv 2309.00071): interpolation by parts, with a factor on the attention.
    fn yarn(&self, plain: Frequencies) -> Result<Frequencies, CompileError> {
        let (factor, original) = (self.positive("factor")?, self.original_context()?);
        let dim = f64::from(self.dim);
        let correction = |rotations: f64| {
            dim * libm::log(original / (rotations * 2.0 * std::f64::consts::PI))
                / (2.0 * libm::log(self.theta))
        };
        let low = libm::floor(correction(self.number("beta_fast").unwrap_or(32.0))).max(0.0);
        let high = libm::ceil(correction(self.number("beta_slow").unwrap_or(1.0))).min(dim - 1.0);
        let spread = if high == low { 0.001 } else { high - low };
        let amplitude = match (
            self.number("attention_factor"),
            self.number("mscale"),
            self.number("mscale_all_dim"),
        ) {
            (Some(given), _, _) => given,
            (None, Some(scale), Some(all)) => yarn_mscale(factor, scale) / yarn_mscale(factor, all),
            (None, _, _) => yarn_mscale(factor, 1.0),
        };
        let blended = plain.map(|pair, inverse| {
            let ramp = ((pair as f64 - low) / spread).clamp(0.0, 1.0);
            inverse / factor * ramp + inverse * (1.0 - ramp)
        });
        Ok(Frequencies {
            amplitude,
            ..blended
        })
    }

    /// LongRoPE (arXiv 2402.13753): one factor per pair. A bundle whose context is longer than the original one uses
    /// the long factors; the choice is made here, once, not by the length of each request.
    fn longrope(&self, plain: Frequencies) -> Result<Frequencies, CompileError> {
        let original = self.original_context()?;
        let long = f64::from(self.rows) > original;
        let name = if long { "long_factor" } else { "short_factor" };
        let path = format!("{}.{name}", self.key);
        let factors: Vec<f64> = self
            .config
            .list(&path)
            .unwrap_or_default()
            .iter()
            .filter_map(serde_json::Value::as_f64)
            .collect();
        let pairs = plain.inverse.len();
        let wrong = factors.iter().find(|f| !(f.is_finite() && **f > 0.0));
        let found = match (factors.len(), wrong) {
            (0, _) => Some("nothing".to_owned()),
            (count, _) if count != pairs => Some(format!("{count} numbers")),
            (_, wrong) => wrong.map(|factor| format!("{factor} among them")),
        };
        if let Some(found) = found {
            return Err(CompileError::RopeScaling {
                key: path,
                expected: format!("{pairs} positive numbers"),
                found,
            });
        }
        let limit = self
            .config
            .number("max_position_embeddings")
            .unwrap_or(original);
        let growth = self.number("factor").unwrap_or(limit / original);
        let amplitude = match self.number("attention_factor") {
            Some(given) => given,
            None if growth <= 1.0 => 1.0,
            None => libm::sqrt(1.0 + libm::log(growth) / libm::log(original)),
        };
        let stretched = plain.map(|pair, inverse| inverse / factors[pair]);
        Ok(Frequencies {
            amplitude,
            ..stretched
        })
    }

    fn original_context(&self) -> Result<f64, CompileError> {
        let named = "original_max_position_embeddings";
        match self.number(named).or_else(|| self.config.number(named)) {
            Some(original) if original >= 1.0 => Ok(original),
            Some(found) => Err(self.refuse(named, &found.to_string())),
            None => match self.config.number("max_position_embeddings") {
                Some(limit) if limit >= 1.0 => Ok(limit),
                _ => Err(self.refuse(named, "nothing")),
            },
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.config.number(&format!("{}.{name}", self.key))
    }

    fn positive(&self, name: &str) -> Result<f64, CompileError> {
        match self.number(name) {
            Some(number) if number.is_finite() && number > 0.0 => Ok(number),
            Some(number) => Err(self.refuse(name, &number.to_string())),
            None => Err(self.refuse(name, "nothing")),
        }
    }

    fn refuse(&self, name: &str, found: &str) -> CompileError {
        CompileError::RopeScaling {
            key: format!("{}.{name}", self.key),
            expected: "a positive number".to_owned(),
            found: found.to_owned(),
        }
    }
}

fn yarn_mscale(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * scale * libm::log(factor) + 1.0
    }
}

#[cfg(test)]
mod tests;
