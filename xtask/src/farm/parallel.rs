//! A script for GNU parallel: a handful of machines over ssh.

use super::jobs::{Group, Stage};

/// Returns the script. The log of each group says which jobs ended well, so that the script can be run again.
pub(super) fn script(stages: &[Stage]) -> String {
    let mut script = HEAD.to_owned();
    for stage in stages {
        script.push_str(&format!("\n# {}\n", stage.name));
        for group in &stage.groups {
            script.push_str(&lines(stage, group));
        }
        // Groups of a stage run side by side.
        script.push_str("wait_for_all\n");
    }
    script
}

fn lines(stage: &Stage, group: &Group) -> String {
    let name = format!("{}-{}", stage.name, group.name());
    let machines = match &group.label {
        Some(label) => format!("machines/{label}"),
        None => "machines/any".to_owned(),
    };
    format!(
        "run {name} {machines} {}G <<'JOBS'\n{}\nJOBS\n",
        group.memory_gb,
        group.commands.join("\n")
    )
}

const HEAD: &str = r#"#!/usr/bin/env bash
# Each line of `machines/LABEL` is a machine with that label, as GNU parallel's --sshlogin takes it; `:` is this one.
# Run it again to go on: what ended well is not run twice. Credentials of a bucket are in the environment of those machines.
set -euo pipefail
mkdir -p log
running=()

run() { # name, file of machines, memory of a job; jobs on standard input
  cat >"log/$1.jobs"
  parallel --jobs 1 --memfree "$3" --retries 3 --joblog "log/$1.log" --resume-failed \
    --sshloginfile "$2" <"log/$1.jobs" &
  running+=($!)
}

wait_for_all() {
  local failed=0
  for job in "${running[@]}"; do wait "$job" || failed=1; done
  running=()
  ((failed == 0)) || { echo "farm: some jobs failed: see log/" >&2; exit 1; }
}
"#;
