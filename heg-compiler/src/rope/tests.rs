//! Rotary tables against values computed here from the definitions, in another order and with the standard library; and
//! errors in configs.

use std::f64::consts::PI;

use heg_spec::architecture::Rope;
use heg_spec::expr::Expr;

use super::{RopeBytes, rope_table};
use crate::fixture::Described;
use crate::graph::SpecScope;

/// A model whose context is 256 and whose `rope_scaling` is `scaling`.
fn model(scaling: &str) -> Described {
    Described::parse(&format!(
        r#"{{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "head_dim": 16, "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5, "rope_scaling": {scaling}}}"#
    ))
}

fn table(scaling: &str, theta: f64, dim: u32, rows: u32) -> Result<RopeBytes, String> {
    let model = model(scaling);
    let rope = Rope {
        theta: Expr::parse(&format!("{theta}")).unwrap(),
        dim: Expr::parse(&format!("{dim}")).unwrap(),
        scaling: Some("rope_scaling".to_owned()),
    };
    let scope = SpecScope::new(&model.architecture, &model.config, None);
    rope_table(&rope, &scope, &model.config, rows).map_err(|error| error.to_string())
}

/// Checks a table of head dimension 16 and base 10 000 against the angle per position of each pair.
fn check(scaling: &str, rows: u32, amplitude: f64, frequency: impl Fn(f64) -> f64) {
    check_dim(scaling, 16, rows, amplitude, frequency);
}

/// Like `check`, for any head dimension; `frequency` takes the number of the pair.
fn check_dim(scaling: &str, dim: u32, rows: u32, amplitude: f64, frequency: impl Fn(f64) -> f64) {
    let table = table(scaling, THETA, dim, rows).unwrap();
    let width = dim / 2;
    assert_eq!((table.rows, table.width), (rows, width));
    assert_eq!(table.cos.len(), (rows * width * 4) as usize);
    assert_eq!(table.sin.len(), table.cos.len());
    let (cos, sin) = (numbers(&table.cos), numbers(&table.sin));
    for row in 0..rows {
        for pair in 0..width {
            let at = (row * width + pair) as usize;
            let angle = f64::from(row) * frequency(f64::from(pair));
            // The angle is rounded to f32, as the reference implementation rounds it.
            let tolerance = (angle.abs() * 2e-7 + 2e-7) * amplitude;
            let off = (cos[at] - amplitude * angle.cos())
                .abs()
                .max((sin[at] - amplitude * angle.sin()).abs());
            assert!(off <= tolerance, "{scaling}: row {row}, pair {pair}: {off}");
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
    bytes.chunks(4).map(number).collect()
}

const THETA: f64 = 10_000.0;

/// `1 / θ^(2i/16)`.
fn plain(pair: f64) -> f64 {
    1.0 / THETA.powf(pair / 8.0)
}

#[test]
fn default() {
    check("null", 256, 1.0, plain);
    check(r#"{"rope_type": "default"}"#, 256, 1.0, plain);
    // Well known: one radian per token, then ten times less for every second of the eight pairs.
    check("null", 64, 1.0, |pair| 10_f64.powf(-pair / 2.0));
}

#[test]
fn partial() {
    check_dim("null", 4, 32, 1.0, |pair| [1.0, 0.01][pair as usize]);
}

#[test]
fn linear() {
    check(
        r#"{"rope_type": "linear", "factor": 8.0}"#,
        256,
        1.0,
        |pair| plain(pair) / 8.0,
    );
    // The older key.
    check(r#"{"type": "linear", "factor": 2}"#, 256, 1.0, |pair| {
        plain(pair) / 2.0
    });
}

#[test]
fn dynamic() {
    let scaling =
        r#"{"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 64}"#;
    check(scaling, 64, 1.0, plain);
    // Base · (4 · 256/64 − 3)^(16/14).
    let base = THETA * 13_f64.powf(8.0 / 7.0);
    check(scaling, 256, 1.0, |pair| (-base.ln() * pair / 8.0).exp());
}

#[test]
fn llama3() {
    let scaling = r#"{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}"#;
    check(scaling, 256, 1.0, |pair| {
        let frequency = plain(pair);
        // Turns within the original context: below one the pair is slowed down, above four it is kept.
        let turns = 64.0 * frequency / (2.0 * PI);
        let kept = ((turns - 1.0) / 3.0).clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / 8.0)
    });
}

/// HF's correction range for this base and dimension, worked out by hand: pairs before `low` are kept, pairs from
/// `high` on are interpolated.
fn yarn(pair: f64, factor: f64, low: f64, high: f64) -> f64 {
    let interpolated = ((pair - low) / (high - low)).clamp(0.0, 1.0);
    plain(pair) * (1.0 - interpolated + interpolated / factor)
}

#[test]
fn yarn_by_parts() {
    // 8 · ln(64 / (32 · 2π)) / ln 10⁴ < 0 → 0; 8 · ln(64 / 2π) / ln 10⁴ = 2.02 → 3.
    let amplitude = 0.1 * 4_f64.ln() + 1.0;
    let given = r#"{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}"#;
    check(given, 256, amplitude, |pair| yarn(pair, 4.0, 0.0, 3.0));
    // 8 · ln(64 / (4 · 2π)) / ln 10⁴ = 0.81 → 0; 8 · ln(64 / (0.1 · 2π)) / ln 10⁴ = 4.02 → 5.
    let given = r#"{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 4, "beta_slow": 0.1, "attention_factor": 1.25}"#;
    check(given, 256, 1.25, |pair| yarn(pair, 4.0, 0.0, 5.0));
    let given = r#"{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "mscale": 2.0, "mscale_all_dim": 0.5}"#;
    let amplitude = (0.2 * 4_f64.ln() + 1.0) / (0.05 * 4_f64.ln() + 1.0);
    check(given, 256, amplitude, |pair| yarn(pair, 4.0, 0.0, 3.0));
    // Nothing to stretch, so there is no factor on the attention either.
    let given = r#"{"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 256}"#;
    check(given, 256, 1.0, plain);
}

#[test]
fn longrope_short_and_long() {
    let short = [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0];
    let long = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
    let scaling = format!(
        r#"{{"rope_type": "longrope", "short_factor": {short:?}, "long_factor": {long:?},
            "original_max_position_embeddings": 64}}"#
    );
    // The context grew fourfold: √(1 + ln 4 / ln 64) = √(4/3).
    let amplitude = (4_f64 / 3.0).sqrt();
    check(&scaling, 64, amplitude, |pair| {
        plain(pair) / short[pair as usize]
    });
    check(&scaling, 256, amplitude, |pair| {
        plain(pair) / long[pair as usize]
    });
    let given = scaling.replace("\"longrope\"", "\"longrope\", \"attention_factor\": 2.0");
    check(&given, 256, 2.0, |pair| plain(pair) / long[pair as usize]);
}

#[test]
fn tables_are_the_same_bytes_everywhere() {
    let scaling = r#"{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}"#;
    let build = || table(scaling, 500_000.0, 16, 256).unwrap();
    assert_eq!(build(), build());
    let bytes = [build().cos, build().sin].concat();
    assert_eq!(blake3::hash(&bytes).to_hex()[..16], *"12cafd8e76b6aeac");
}

fn refused(scaling: &str, rows: u32) -> String {
    table(scaling, THETA, 16, rows).unwrap_err()
}

#[test]
fn missing_and_wrong_factors_are_refused() {
    let number = |key: &str, found: &str| {
        format!("rotary scaling `rope_scaling.{key}`: expected a positive number, found {found}")
    };
    let check = |scaling: &str, expected: &str| assert_eq!(refused(scaling, 256), expected);
    for kind in ["linear", "dynamic", "llama3", "yarn"] {
        check(
            &format!(r#"{{"rope_type": "{kind}"}}"#),
            &number("factor", "nothing"),
        );
        for factor in ["0", "-2.5"] {
            let scaling = format!(r#"{{"rope_type": "{kind}", "factor": {factor}}}"#);
            check(&scaling, &number("factor", factor));
        }
    }
    check(
        r#"{"rope_type": "llama3", "factor": 8}"#,
        &number("low_freq_factor", "nothing"),
    );
    check(
        r#"{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1}"#,
        &number("high_freq_factor", "nothing"),
    );
    check(
        r#"{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}"#,
        &number("original_max_position_embeddings", "nothing"),
    );
    check(
        r#"{"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 0}"#,
        &number("original_max_position_embeddings", "0"),
    );
}

#[test]
fn factors_that_do_not_fit_the_pairs_are_refused() {
    let longrope = |factors: &str| {
        format!(r#"{{"rope_type": "longrope", "original_max_position_embeddings": 64, {factors}}}"#)
    };
    let short = refused(&longrope(r#""short_factor": [1, 2, 3]"#), 64);
    assert_eq!(
        short,
        "rotary scaling `rope_scaling.short_factor`: expected 8 positive numbers, found 3 numbers"
    );
    let absent = refused(&longrope(r#""short_factor": [1, 2, 3]"#), 65);
    assert_eq!(
        absent,
        "rotary scaling `rope_scaling.long_factor`: expected 8 positive numbers, found nothing"
    );
    let negative = refused(&longrope(r#""long_factor": [1, 1, 1, 1, 1, 1, -3, 1]"#), 65);
    assert_eq!(
        negative,
        "rotary scaling `rope_scaling.long_factor`: expected 8 positive numbers, found -3 among them"
    );
}

#[test]
fn unknown_scalings_are_refused() {
    assert_eq!(
        refused(r#"{"rope_type": "ntk"}"#, 256),
        "rotary scaling `rope_scaling`: expected one of `default`, `linear`, `dynamic`, `llama3`, `yarn`, \
         `longrope`, found `ntk`"
    );
}

#[test]
fn tables_without_finite_angles_are_refused() {
    let wrong = |found: &str| {
        format!("rotary scaling `rope_scaling`: expected finite angles, found {found}")
    };
    assert_eq!(
        refused(r#"{"rope_type": "linear", "factor": 1e-300}"#, 4),
        wrong("a frequency of 1.0e300")
    );
    let yarn = r#"{"rope_type": "yarn", "factor": 4.0, "attention_factor": 1e300}"#;
    assert_eq!(refused(yarn, 4), wrong("a factor of 1.0e300"));
    // The last pair's frequency is 10⁴³ to the power of 7/8: angles of a few positions fit into f32, those of more do
    // not.
    let tiny = |rows| table("null", 1e-43, 16, rows).map(|table| table.rows);
    assert_eq!(tiny(4), Ok(4));
    let text = tiny(16).unwrap_err();
    assert!(
        text.ends_with("expected finite angles, found a frequency of 4.2e37"),
        "{text}"
    );
}
