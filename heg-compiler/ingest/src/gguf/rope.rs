//! Rotary embedding of a GGUF file: base, scaling, and factors stored as tensors.

use serde_json::{Value, json};

use super::super::error::IngestError;
use super::config::{Settings, decimal};
use super::element_type::RowFormat;
use super::family::{ROPE_FREQS, ROPE_LONG, ROPE_SHORT};
use crate::SourceDtype;

/// Sets the keys of rotary embedding.
pub(super) fn settings(settings: &mut Settings<'_, '_>) -> Result<(), IngestError> {
    let theta = settings.number("rope.freq_base")?.unwrap_or(THETA);
    settings.set("rope_theta", json!(theta));
    if settings.family.name == "gemma3" {
        let local = settings.number("rope.freq_base_swa")?.unwrap_or(THETA);
        settings.set("rope_local_base_freq", json!(local));
    }
    width(settings)?;
    let original = settings.count("rope.scaling.original_context_length")?;
    if settings.family.name == "phi3"
        && let Some(original) = original
    {
        settings.set("original_max_position_embeddings", json!(original));
    }
    if let Some(scaling) = scaling(settings, theta, original)? {
        settings.set("rope_scaling", scaling);
    }
    Ok(())
}

/// Sets the rotated part of a head: all of it, except in Phi 3.
fn width(settings: &mut Settings<'_, '_>) -> Result<(), IngestError> {
    const WIDTH: &str = "rope.dimension_count";
    let head = settings.head();
    match settings.count(WIDTH)? {
        None => Ok(()),
        Some(width) if width == head => Ok(()),
        Some(width) if settings.family.name == "phi3" && width > 0 && width < head => {
            let factor = width as f64 / head as f64;
            settings.set("partial_rotary_factor", json!(factor));
            Ok(())
        }
        Some(_) => Err(settings.wrong(WIDTH, "the size of a head")),
    }
}

fn scaling(
    settings: &Settings<'_, '_>,
    theta: f64,
    original: Option<u64>,
) -> Result<Option<Value>, IngestError> {
    let missing = |name: &str| IngestError::MissingTensor {
        name: name.to_owned(),
        nearest: None,
    };
    match (
        factors(settings, ROPE_LONG)?,
        factors(settings, ROPE_SHORT)?,
    ) {
        (Some(long), Some(short)) => return Ok(Some(longrope(settings, &long, &short)?)),
        (Some(_), None) => return Err(missing(ROPE_SHORT)),
        (None, Some(_)) => return Err(missing(ROPE_LONG)),
        (None, None) => {}
    }
    if let Some(found) = factors(settings, ROPE_FREQS)? {
        return Ok(by_pair(settings, theta, &found));
    }
    let kind = settings.key("rope.scaling.type");
    let factor = match settings.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => settings.number("rope.scale_linear")?,
    };
    let factor = factor.filter(|factor| *factor != 0.0 && *factor != 1.0);
    match (settings.metadata.text(&kind)?, factor) {
        (Some("longrope"), _) => Err(missing(ROPE_LONG)),
        (Some("none"), _) | (_, None) => Ok(None),
        (None | Some("linear"), Some(factor)) => {
            Ok(Some(json!({"rope_type": "linear", "factor": factor})))
        }
        (Some("yarn"), Some(factor)) => Ok(Some(yarn(settings, factor, original)?)),
        (Some(_), _) => Err(settings.wrong(
            "rope.scaling.type",
            "none, linear, yarn, or longrope with its factors",
        )),
    }
}

/// YaRN; for missing keys the defaults are transformers', which are ggml's too.
fn yarn(
    settings: &Settings<'_, '_>,
    factor: f64,
    original: Option<u64>,
) -> Result<Value, IngestError> {
    let mut scaling = json!({"rope_type": "yarn", "factor": factor});
    let mut set = |key: &str, value: Value| {
        scaling[key] = value;
    };
    if let Some(original) = original {
        set("original_max_position_embeddings", json!(original));
    }
    for (name, key) in [
        ("rope.scaling.yarn_attn_factor", "attention_factor"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ] {
        if let Some(number) = settings.number(name)? {
            set(key, json!(number));
        }
    }
    const EXTRAPOLATION: &str = "rope.scaling.yarn_ext_factor";
    match settings.number(EXTRAPOLATION)? {
        None => Ok(scaling),
        Some(factor) if factor == 1.0 || factor < 0.0 => Ok(scaling),
        Some(_) => Err(settings.wrong(EXTRAPOLATION, "1")),
    }
}

fn longrope(
    settings: &Settings<'_, '_>,
    long: &[f32],
    short: &[f32],
) -> Result<Value, IngestError> {
    let original = settings.count_needed("rope.scaling.original_context_length")?;
    let context = settings.count_needed("context_length")?;
    let mut scaling = json!({
        "rope_type": "longrope",
        "long_factor": decimals(long),
        "short_factor": decimals(short),
        "original_max_position_embeddings": original,
    });
    let (growth, original) = (context as f64 / original as f64, original as f64);
    let usual = match growth > 1.0 {
        true => libm::sqrt(1.0 + libm::log(growth) / libm::log(original)),
        false => 1.0,
    };
    // The usual factor is left out, to be computed again without its rounding in the file.
    if let Some(found) = settings.number("rope.scaling.attn_factor")?
        && !near(found, usual)
    {
        scaling["attention_factor"] = json!(found);
    }
    Ok(scaling)
}

/// Factors of Llama 3 as the formula that they were computed by; other factors unchanged.
fn by_pair(settings: &Settings<'_, '_>, theta: f64, factors: &[f32]) -> Option<Value> {
    if factors.iter().all(|factor| *factor == 1.0) {
        return None;
    }
    if let Some(formula) = Llama3::of(theta, factors) {
        return Some(json!({
            "rope_type": "llama3",
            "factor": formula.factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": formula.original,
        }));
    }
    let context = settings.keys.get("max_position_embeddings").cloned();
    Some(json!({
        "rope_type": "longrope",
        "long_factor": decimals(factors),
        "short_factor": decimals(factors),
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }))
}

/// The formula of Llama 3's factors, whose bounds are 1 and 4 in every published model.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Llama3 {
    factor: f64,
    original: f64,
}

impl Llama3 {
    /// The formula that gives these factors, if there is one.
    fn of(theta: f64, factors: &[f32]) -> Option<Self> {
        let factor = factors.iter().copied().fold(1.0, f32::max);
        let factor = decimal(factor);
        let width = 2.0 * factors.len() as f64;
        let wavelength =
            |pair: usize| 2.0 * std::f64::consts::PI * libm::pow(theta, 2.0 * pair as f64 / width);
        let fits = |candidate: &Self| {
            let mut pairs = factors.iter().enumerate();
            pairs.all(|(pair, found)| near(f64::from(*found), candidate.at(wavelength(pair))))
        };
        // A factor between the bounds determines the original context.
        let between = factors.iter().enumerate().filter(|(_, found)| {
            let found = f64::from(**found);
            found > 1.0 && found < factor && !near(found, factor) && !near(found, 1.0)
        });
        let solved = between.take(SOLVED_MAX).map(|(pair, found)| {
            let smooth = (1.0 / f64::from(*found) - 1.0 / factor) / (1.0 - 1.0 / factor);
            libm::round(wavelength(pair) * (smooth * (HIGH - LOW) + LOW))
        });
        let powers = (4..=20).map(|power| f64::from(1_u32 << power));
        solved
            .chain(powers)
            .map(|original| Self { factor, original })
            .find(fits)
    }

    fn at(&self, wavelength: f64) -> f64 {
        if wavelength < self.original / HIGH {
            1.0
        } else if wavelength > self.original / LOW {
            self.factor
        } else {
            let smooth = (self.original / wavelength - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }
}

/// Whether two numbers are equal up to the roundings of f32 arithmetic.
fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * b.abs()
}

fn decimals(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(decimal).collect()
}

/// Reads a small tensor of one dimension.
fn factors(settings: &Settings<'_, '_>, name: &str) -> Result<Option<Vec<f32>>, IngestError> {
    let Some(described) = settings.tensors.by_name.get(name) else {
        return Ok(None);
    };
    let pairs = usize::try_from(settings.head() / 2).unwrap_or(0);
    match described.shape.as_slice() {
        [length] if *length <= pairs && *length > 0 => {}
        _ => {
            return Err(IngestError::ShapeMismatch {
                tensor: name.to_owned(),
                found: described.shape.clone(),
                expected: vec![pairs],
            });
        }
    }
    if described.format != RowFormat::Plain(SourceDtype::F32) {
        return Err(IngestError::DtypeUnsupported {
            tensor: name.to_owned(),
            found: described.format.to_string(),
            expected: "F32",
        });
    }
    let bytes = settings
        .file
        .get(described.bytes.clone())
        .unwrap_or_default();
    let numbers = bytes.as_chunks::<4>().0.iter();
    let numbers: Vec<f32> = numbers.map(|raw| f32::from_le_bytes(*raw)).collect();
    match numbers.iter().all(|n| n.is_finite() && *n > 0.0) {
        true => Ok(Some(numbers)),
        false => Err(IngestError::ConfigValue {
            path: settings.metadata.path().to_owned(),
            key: name.to_owned(),
            found: "others".to_owned(),
            expected: "finite positive numbers",
        }),
    }
}

/// Base of the frequencies if the file has none (ggml).
const THETA: f64 = 10_000.0;

/// Bounds of the wavelengths that Llama 3's formula blends.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;

/// Number of factors from which the original context is solved. Chosen: one is enough if all agree.
const SOLVED_MAX: usize = 8;
