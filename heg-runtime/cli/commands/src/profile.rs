//! `heg profile`: measures a bundle's kernels on this machine and saves the results.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use heg_profiler::measure::{
    self, Case, MeasurementPlan, PairSubject, Profile, Report, SolvedPieces, Watch,
};
use heg_profiler::predict::{Check, PredictionSource};
use heg_runtime::profile::file::ProfileFile;
use heg_runtime::profile::{BundlePair, BundleSubject, Extent, identities};
use heg_runtime::{ExecError, Loaded, read_soc, verified};
use serde_json::json;

use crate::failure::{Finding, input};
use crate::options::located;

/// Arguments of `heg profile`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The bundle: a file, or a name that `heg list` shows
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Devices to measure: a shipped SoC (`host-cpu`, `host-cpu-f32`, `host-roles`) or a .ron file
    #[arg(long, value_name = "SOC", default_value = "host-cpu")]
    soc: String,
    /// Where to keep the profile [default: the cache folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Approximate time budget for running kernels
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    budget: u64,
    /// Largest number of tokens of a call
    #[arg(long, value_name = "TOKENS", default_value_t = Extent::default().chunk_tokens)]
    chunk: u32,
    /// Longest context
    #[arg(long, value_name = "TOKENS", default_value_t = Extent::default().context_tokens)]
    context: u32,
    /// Measure again what was measured before
    #[arg(long)]
    again: bool,
    /// Predict calls that were not measured, measure them, and fail if they differ too much
    #[arg(long)]
    check: bool,
    /// Seed for choosing the calls to check
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.chunk == 0 || arguments.context == 0 {
        return Err(input("`--chunk` and `--context` must be at least 1"));
    }
    let loaded = Loaded::open(&located(&arguments.bundle)?)?;
    let cache = verified::cache_folder()?;
    if let Some(cache) = &cache {
        verified::trust_if_verified(loaded.bundle(), cache);
    }
    let soc = read_soc(&arguments.soc)?;
    let loader = loaded.loader(&soc)?;
    let devices = identities(&loader);
    let bundle = loaded.bundle();
    let kept = match (&arguments.output, &cache) {
        (Some(output), _) => ProfileFile::named(output),
        (None, Some(cache)) => ProfileFile::kept(cache, bundle, &devices),
        (None, None) => return Err(input("there is no cache folder: say where with `--output`")),
    };
    let known = match arguments.again {
        true => None,
        false => kept.read(bundle, &devices)?,
    };
    let known = known.unwrap_or_else(|| Profile::new(bundle.manifest_id(), &soc.name, devices));
    let extent = Extent {
        chunk_tokens: arguments.chunk,
        context_tokens: arguments.context,
        ..Extent::default()
    };
    let mut subject = BundleSubject::new(loader, extent);
    let (mut profile, check) = measure_all(arguments, &mut subject, known, &kept)?;
    let pair = BundlePair::new(loaded.loader(&soc)?, extent)?;
    let solved = match pair {
        Some(pair) => pieces(arguments, pair, &mut profile, &kept)?,
        None => Vec::new(),
    };
    if let Some(cache) = &cache {
        verified::remember(bundle, cache)?;
    }
    let report = Report::new(measure::Subject::cases(&subject), &profile);
    let measured = Measured {
        report,
        check,
        pieces: solved,
    };
    print(arguments, kept.path(), &measured)?;
    let Measured { check, .. } = measured;
    match check {
        Some(check) if !check.passes() => Err(Finding {
            message: "predictions are further off than the bounds".to_owned(),
        }
        .into()),
        _ => Ok(()),
    }
}

/// Measures the kernels that are not measured yet, and checks predictions if asked to.
fn measure_all(
    arguments: &Arguments,
    subject: &mut BundleSubject,
    known: Profile,
    kept: &ProfileFile,
) -> Result<(Profile, Option<Check>), ExecError> {
    let plan = MeasurementPlan {
        budget: Duration::from_secs(arguments.budget),
        ..MeasurementPlan::default()
    };
    let profile = measure::profile(subject, known, &plan, &mut Keeper { file: kept })?;
    let mut check = None;
    if arguments.check {
        let calls = CHECKED_CALLS;
        let found = measure::check(subject, &profile, &plan, calls, arguments.seed)?;
        check = Some(found);
    }
    clear_line();
    Ok((profile, check))
}

/// Measures the pieces of products on two devices that share them, if they are not measured yet. Returns the cuts that they
/// give.
fn pieces(
    arguments: &Arguments,
    mut pair: BundlePair,
    profile: &mut Profile,
    kept: &ProfileFile,
) -> Result<Vec<SolvedPieces>, ExecError> {
    let step = BundlePair::ROW_STEP;
    if profile.pieces.is_empty() {
        let budget = Duration::from_secs(arguments.budget) / PIECES_SHARE;
        profile.pieces = measure::measure_pieces(&mut pair, step, budget)?.tables();
        kept.write(profile)?;
    }
    Ok(SolvedPieces::of(pair.kernels(), &profile.pieces, step))
}

/// The result of the command.
struct Measured {
    report: Report,
    check: Option<Check>,
    pieces: Vec<SolvedPieces>,
}

/// A table of the cuts that measured pieces give; empty if there are none.
fn table(pieces: &[SolvedPieces]) -> String {
    let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.3}", us / 1e3));
    let line = |it: &SolvedPieces| {
        format!(
            "{:<10} {:>6}  {:<26} {:>9} {:>9} {:>9}\n",
            it.product,
            it.tokens,
            it.cut,
            ms(Some(it.latency_us)),
            ms(it.first_us),
            ms(it.second_us),
        )
    };
    let head = "\nproduct    tokens  shared by both              cut, ms     first    second\n";
    let lines: String = pieces.iter().map(line).collect();
    match lines.is_empty() {
        true => lines,
        false => format!("{head}{lines}"),
    }
}

fn print(arguments: &Arguments, kept: &Path, measured: &Measured) -> anyhow::Result<()> {
    let Measured {
        report,
        check,
        pieces,
    } = measured;
    let check = check.as_ref();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let errors = check.and_then(|check| check.errors(None, PredictionSource::Predicted));
        let check = check.map(|check| {
            json!({
                "calls": check.comparisons.len(),
                "error_median": errors.map(|(median, _)| median),
                "error_p95": errors.map(|(_, p95)| p95),
                "passes": check.passes(),
            })
        });
        let object = json!({ "profile": kept, "report": report, "check": check, "pieces": pieces });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    write!(out, "{report}{}", table(pieces))?;
    if let Some(check) = check {
        write!(out, "\n{check}")?;
    }
    writeln!(out, "\nprofile {}", kept.display()).context("cannot print")?;
    Ok(())
}

/// Saves after each kernel, and shows the progress on a terminal.
struct Keeper<'p> {
    file: &'p ProfileFile,
}

impl Watch<ExecError> for Keeper<'_> {
    fn visited(&mut self, case: &Case, settled: usize, calls: usize) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{:<18} {settled:>4} of {calls} calls", case.label());
        }
    }

    fn measured(&mut self, profile: &Profile) -> Result<(), ExecError> {
        self.file.write(profile)
    }
}

fn clear_line() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// Number of calls per kernel that are checked: enough for a 95th percentile. Chosen.
const CHECKED_CALLS: u32 = 24;

/// Part of the budget for pieces of products: three quarters are the kernels'. Chosen.
const PIECES_SHARE: u32 = 4;

#[cfg(test)]
mod tests {
    use heg_spec::{Cut, CutProduct};

    use super::*;

    #[test]
    fn cuts_are_told_beside_what_either_device_takes_alone() {
        let pieces = [SolvedPieces {
            product: CutProduct::GateUp,
            tokens: 256,
            cut: Cut::Rows { first: 704 },
            latency_us: 1250.0,
            first_us: Some(2400.0),
            second_us: None,
        }];
        let expected = "
product    tokens  shared by both              cut, ms     first    second
gate-up       256  704 rows on the first          1.250     2.400         -
";
        assert_eq!(table(&pieces), expected);
        assert_eq!(table(&[]), "");
    }
}
