//! The jobs of a matrix, in stages: a job needs those of earlier stages and none of its own.

use super::matrix::{FarmCompiler, FarmMatrix, FarmModel};
use anyhow::{Context, Result};

/// Jobs that can run side by side.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// Groups of jobs for the same machines.
    pub(super) groups: Vec<Group>,
}

/// Jobs for the machines with one label.
#[derive(Debug)]
pub(super) struct Group {
    /// Label of the machines; `None` for any.
    pub(super) label: Option<String>,
    /// Memory of the largest job, in gigabytes.
    pub(super) memory_gb: u32,
    /// Commands, each in the form that a shell takes.
    pub(super) commands: Vec<String>,
}

impl Group {
    /// The name of the group within its stage.
    pub(super) fn name(&self) -> &str {
        self.label.as_deref().unwrap_or("any")
    }
}

/// Returns the stages of a matrix; none of them is empty.
pub(super) fn of(farm: &FarmMatrix) -> Result<Vec<Stage>> {
    let encoded = group(None, &farm.models, |model| {
        Ok(vec![compile(farm, model, None, &[], &plain(farm, model))?])
    })?;
    let with_blobs = farm.compilers.iter().map(|compiler| {
        group(Some(&compiler.label), &farm.models, |model| {
            let platforms = compiler.platforms.iter();
            let each = platforms.map(|platform| blobs(farm, model, compiler, *platform));
            each.collect()
        })
    });
    let measured = farm.profiles.iter().map(|profile| {
        group(Some(&profile.label), &farm.models, |model| {
            let output = measured(farm, model, &profile.label);
            let bundle = plain(farm, model);
            let words = ["heg", "profile", &bundle, "--soc", &profile.soc];
            Ok(vec![quoted(
                &[&words[..], &["--output", &output]].concat(),
            )?])
        })
    });
    let sent = farm.push.iter().filter(|_| farm.shared.is_none());
    let sent = sent.map(|place| {
        group(None, &farm.models, |model| {
            Ok(vec![quoted(&push(
                farm,
                model,
                place,
                &finished(farm, model),
            ))?])
        })
    });
    let stages = [
        ("encode", vec![encoded]),
        ("blobs", with_blobs.collect::<Result<_>>()?),
        ("profile", measured.collect::<Result<_>>()?),
        ("bundle", bundles(farm)?),
        ("push", sent.collect::<Result<_>>()?),
    ];
    let stages = stages.map(|(name, groups)| Stage { name, groups });
    let is_full = |stage: &Stage| !stage.groups.is_empty();
    Ok(stages.into_iter().filter(is_full).collect())
}

fn group(
    label: Option<&String>,
    models: &[FarmModel],
    commands: impl Fn(&FarmModel) -> Result<Vec<String>>,
) -> Result<Group> {
    let all: Vec<Vec<String>> = models.iter().map(commands).collect::<Result<_>>()?;
    Ok(Group {
        label: label.cloned(),
        memory_gb: models
            .iter()
            .map(|model| model.memory_gb)
            .max()
            .unwrap_or(0),
        commands: all.into_iter().flatten().collect(),
    })
}

/// The bundles that are sent: one for each version of the NPU compiler, made where that version is, or one without blobs.
fn bundles(farm: &FarmMatrix) -> Result<Vec<Group>> {
    let one = |compiler: Option<&FarmCompiler>| {
        group(compiler.map(|it| &it.label), &farm.models, |model| {
            let mut more = Vec::new();
            for profile in &farm.profiles {
                more.push("--profile".to_owned());
                more.push(measured(farm, model, &profile.label));
            }
            let output = bundle(farm, model, compiler);
            let made = compile(farm, model, compiler, &more, &output)?;
            let (Some(place), Some(_)) = (&farm.push, &farm.shared) else {
                return Ok(vec![made]);
            };
            // No other machine sees this one's folder, so it sends what it made.
            let sent = quoted(&push(farm, model, place, &[output]))?;
            Ok(vec![quoted(&["sh", "-c", &format!("{made} && {sent}")])?])
        })
    };
    match farm.compilers.is_empty() {
        true => Ok(vec![one(None)?]),
        false => farm.compilers.iter().map(|it| one(Some(it))).collect(),
    }
}

/// Compiles the blobs of one platform into the store. The bundle beside it is a means to that end.
fn blobs(
    farm: &FarmMatrix,
    model: &FarmModel,
    compiler: &FarmCompiler,
    platform: u32,
) -> Result<String> {
    let one = FarmCompiler {
        label: compiler.label.clone(),
        platforms: vec![platform],
    };
    let name = format!("{}-{}-{platform}", model.name, compiler.label);
    let output = format!("{}/work/{name}.heg", farm.store);
    compile(farm, model, Some(&one), &[], &output)
}

/// The command that compiles a model, with blobs for the platforms of a compiler.
fn compile(
    farm: &FarmMatrix,
    model: &FarmModel,
    compiler: Option<&FarmCompiler>,
    more: &[String],
    output: &str,
) -> Result<String> {
    let mut words = vec!["env".to_owned(), format!("HEG_BUNDLES={}", farm.store)];
    words.extend(["hegc", "compile", &model.path, "--name", &model.name].map(str::to_owned));
    for (option, value) in [
        ("--weights", &model.weights),
        ("--store-key", &farm.key),
        ("--shared-store", &farm.shared),
    ] {
        if let Some(value) = value {
            words.extend([option.to_owned(), value.clone()]);
        }
    }
    match compiler {
        Some(compiler) => {
            let platforms = compiler.platforms.iter().map(ToString::to_string);
            let platforms = platforms.collect::<Vec<_>>().join(",");
            words.extend(["--npu", "require", "--npu-platforms", &platforms].map(str::to_owned));
        }
        None => words.extend(["--npu", "off"].map(str::to_owned)),
    }
    words.extend_from_slice(more);
    words.extend(["--output".to_owned(), output.to_owned()]);
    quoted(&words)
}

/// The bundle without blobs, which is measured.
fn plain(farm: &FarmMatrix, model: &FarmModel) -> String {
    format!("{}/work/{}.heg", farm.store, model.name)
}

/// The profile of a model on machines with a label.
fn measured(farm: &FarmMatrix, model: &FarmModel, label: &str) -> String {
    format!("{}/work/{}-{label}.ron", farm.store, model.name)
}

/// A bundle to send.
fn bundle(farm: &FarmMatrix, model: &FarmModel, compiler: Option<&FarmCompiler>) -> String {
    match compiler {
        Some(compiler) => format!("{}/{}-{}.heg", farm.store, model.name, compiler.label),
        None => format!("{}/{}.heg", farm.store, model.name),
    }
}

/// All bundles of a model to send.
fn finished(farm: &FarmMatrix, model: &FarmModel) -> Vec<String> {
    match farm.compilers.is_empty() {
        true => vec![bundle(farm, model, None)],
        false => farm
            .compilers
            .iter()
            .map(|compiler| bundle(farm, model, Some(compiler)))
            .collect(),
    }
}

/// The words that send bundles of a model.
fn push(farm: &FarmMatrix, model: &FarmModel, place: &str, bundles: &[String]) -> Vec<String> {
    let mut words = vec!["heg".to_owned(), "push".to_owned()];
    words.extend_from_slice(bundles);
    words.push(format!("{place}/{}:{}", model.name, farm.tag));
    words
}

/// Words as one line of a shell.
pub(super) fn quoted<W: AsRef<str>>(words: &[W]) -> Result<String> {
    let words = words.iter().map(AsRef::as_ref);
    let line = shlex::try_join(words).context("a path has a byte that no shell takes")?;
    anyhow::ensure!(
        !line.contains('\n'),
        "`{}` has a line break, expected a path or a name",
        line.escape_debug()
    );
    Ok(line)
}
