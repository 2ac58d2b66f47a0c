//! Tables of the lines that `run.sh` wrote.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use xtask::fail::Fail;

pub(super) fn run(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file)
        .with_context(|| Fail::input(format!("cannot read `{}`", file.display())))?;
    print!("{}", tables(&text)?);
    Ok(())
}

/// Tables in Markdown.
fn tables(text: &str) -> Result<String> {
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str::<Value>(line)
            .with_context(|| Fail::input(format!("line {}: no JSON", number + 1)))
    };
    let lines = text.lines().enumerate().map(parse);
    let lines = lines.collect::<Result<Vec<Value>>>()?;
    let of =
        |step: &str| -> Vec<&Value> { lines.iter().filter(|line| line["step"] == step).collect() };
    let mut out = String::new();
    for line in of("machine").into_iter().chain(of("device")) {
        let _ = writeln!(out, "{}\n", shown(line));
    }
    products(&mut out, &of("product"));
    pairs(&mut out, &of("copy"), &["bytes", "gb_per_s"]);
    pairs(&mut out, &of("submissions"), &["one_us", "launch_us"]);
    pairs(&mut out, &of("attention"), &["rows", "context", "us"]);
    pairs(&mut out, &of("bits"), &["model", "equal"]);
    models(&mut out, &of("model"));
    peers(&mut out, &of("llama"));
    pairs(&mut out, &of("end"), &["name", "status", "seconds"]);
    Ok(out)
}

/// A shape's row for each form of weights, a column for each number of rows: GB/s of weights.
fn products(out: &mut String, lines: &[&Value]) {
    let mut shapes: BTreeMap<(String, u64, u64), BTreeMap<u64, f64>> = BTreeMap::new();
    for line in lines {
        let number = |name: &str| line[name].as_u64().unwrap_or(0);
        let shape = (
            shown(&line["element"]),
            number("columns"),
            number("outputs"),
        );
        let rate = line["gb_per_s"].as_f64().unwrap_or(f64::NAN);
        shapes
            .entry(shape)
            .or_default()
            .insert(number("rows"), rate);
    }
    let Some(first) = shapes.values().next() else {
        return;
    };
    let rows = first.keys().map(|rows| format!(" {rows} |"));
    let _ = writeln!(
        out,
        "| product, GB/s of weights at rows |{}",
        rows.collect::<String>()
    );
    let _ = writeln!(out, "|---|{}", "---|".repeat(first.len()));
    for ((element, columns, outputs), rates) in &shapes {
        let rates = rates.values().map(|rate| format!(" {rate:.0} |"));
        let rates = rates.collect::<String>();
        let _ = writeln!(out, "| {element} {columns} → {outputs} |{rates}");
    }
    out.push('\n');
}

fn models(out: &mut String, lines: &[&Value]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "| model | on | load ms | prefill tok/s, by tokens | decode tok/s | of merely reading | of eight |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|");
    for line in lines {
        let figures = &line["figures"];
        let rate = |value: &Value| format!("{:.0}", value.as_f64().unwrap_or(f64::NAN));
        let prefill = figures["prefill_tokens_per_s"].as_object();
        let prefill = prefill.into_iter().flatten();
        let prefill: Vec<_> = prefill
            .map(|(tokens, of)| format!("{tokens}: {}", rate(of)))
            .collect();
        let decode = figures["decode_tokens_per_s"].as_f64();
        let limit = figures["decode_limit_tokens_per_s"].as_f64();
        // Cores read what the bundle has; a GPU has a copy.
        let reads = !shown(&line["soc"]).contains("gpu");
        let share = decode.zip(limit).filter(|_| reads);
        let share = share.map(|(decode, limit)| decode / limit);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            shown(&line["model"]),
            shown(&line["soc"]),
            rate(&figures["load_ms"]),
            prefill.join(", "),
            rate(&figures["decode_tokens_per_s"]),
            share.map_or(String::new(), |share| format!("{share:.2}")),
            rate(&figures["batch_decode_tokens_per_s"]),
        );
    }
    out.push('\n');
}

/// A row for each line of llama-bench.
fn peers(out: &mut String, lines: &[&Value]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "| llama.cpp | on | attention | tokens read | written | tok/s |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|");
    for line in lines {
        let figures = &line["figures"];
        let attention = match figures["flash_attn"].as_i64() {
            Some(1) => "flash",
            _ => "plain",
        };
        let _ = writeln!(
            out,
            "| {} | {} | {attention} | {} | {} | {:.1} |",
            shown(&line["model"]),
            shown(&line["on"]),
            shown(&figures["n_prompt"]),
            shown(&figures["n_gen"]),
            figures["avg_ts"].as_f64().unwrap_or(f64::NAN),
        );
    }
    out.push('\n');
}

/// Lines with these fields, as they are.
fn pairs(out: &mut String, lines: &[&Value], fields: &[&str]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "| {} |\n|{}",
        fields.join(" | "),
        "---|".repeat(fields.len())
    );
    for line in lines {
        let values: Vec<_> = fields.iter().map(|field| shown(&line[*field])).collect();
        let _ = writeln!(out, "| {} |", values.join(" | "));
    }
    out.push('\n');
}

/// A value without quotes; of an object, its fields but for the step.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| *name != "step");
            let fields: Vec<_> = fields
                .map(|(name, value)| format!("{name} {}", shown(value)))
                .collect();
            fields.join(", ")
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::tables;

    #[test]
    fn lines_become_tables() {
        let text = r#"{"step":"machine","cpu":"a CPU","processors":2}
{"step":"product","element":"I8","rows":1,"columns":64,"outputs":32,"us":1.5,"gb_per_s":10.4}
{"step":"product","element":"I8","rows":8,"columns":64,"outputs":32,"us":1.5,"gb_per_s":9.6}
{"step":"bits","model":"tiny","equal":true}
{"step":"model","model":"tiny","soc":"host-cpu","figures":{"load_ms":3.2,"prefill_tokens_per_s":{"512":1000.4},"decode_tokens_per_s":20.0,"decode_limit_tokens_per_s":25.0,"batch_decode_tokens_per_s":90.6}}
{"step":"llama","model":"1b","on":"GPU","figures":{"n_prompt":512,"n_gen":0,"flash_attn":1,"avg_ts":100.04}}
{"step":"end","name":"measure","status":0,"seconds":9}
"#;
        let expected = "\
cpu a CPU, processors 2

| product, GB/s of weights at rows | 1 | 8 |
|---|---|---|
| I8 64 → 32 | 10 | 10 |

| model | equal |
|---|---|
| tiny | true |

| model | on | load ms | prefill tok/s, by tokens | decode tok/s | of merely reading | of eight |
|---|---|---|---|---|---|---|
| tiny | host-cpu | 3 | 512: 1000 | 20 | 0.80 | 91 |

| llama.cpp | on | attention | tokens read | written | tok/s |
|---|---|---|---|---|---|
| 1b | GPU | flash | 512 | 0 | 100.0 |

| name | status | seconds |
|---|---|---|
| measure | 0 | 9 |

";
        assert_eq!(tables(text).unwrap(), expected);
        let error = tables("{\"step\":\"end\"}\nno\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: no JSON");
    }
}
