//! A script that submits Slurm arrays, each after those of the stage before.

use super::jobs::{Group, Stage};

/// Returns the script.
pub(super) fn script(stages: &[Stage]) -> String {
    let mut script = HEAD.to_owned();
    for stage in stages {
        script.push_str(&format!("\n# {}\n", stage.name));
        for group in &stage.groups {
            script.push_str(&lines(stage, group));
        }
        script.push_str("next_stage\n");
    }
    script
}

fn lines(stage: &Stage, group: &Group) -> String {
    let name = format!("{}-{}", stage.name, group.name());
    let feature = group.label.iter();
    let feature: String = feature.map(|it| format!(" --constraint={it}")).collect();
    format!(
        "submit {name} {} --mem={}G{feature} <<'JOBS'\n{}\nJOBS\n",
        group.commands.len(),
        group.memory_gb,
        group.commands.join("\n")
    )
}

const HEAD: &str = r#"#!/usr/bin/env bash
# Labels are features of nodes. A job whose node is lost is queued again; a stage waits until all of the one before ended well.
set -euo pipefail
mkdir -p log
before=() stage=()

submit() { # name, number of jobs, options; jobs on standard input
  local name=$1 count=$2
  shift 2
  cat >"log/$name.jobs"
  local after=()
  ((${#before[@]} == 0)) || after=(--dependency="afterok$(printf ':%s' "${before[@]}")" --kill-on-invalid-dep=yes)
  stage+=("$(sbatch --parsable --requeue --job-name="$name" --array="1-$count" --output="log/$name-%a.out" \
    "${after[@]}" "$@" --wrap="eval \"\$(sed -n \"\${SLURM_ARRAY_TASK_ID}p\" '$PWD/log/$name.jobs')\"")")
}

next_stage() {
  before=("${stage[@]}")
  stage=()
}
"#;
