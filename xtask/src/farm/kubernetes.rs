//! A script that applies Indexed Jobs of Kubernetes, one stage after the other.

use super::jobs::{Group, Stage};
use super::matrix::FarmMatrix;
use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Returns the script. A job's manifest is JSON, which `kubectl` takes as it takes YAML.
pub(super) fn script(stages: &[Stage], matrix: &FarmMatrix) -> Result<String> {
    let image = matrix.image.as_deref();
    let image =
        image.context("it has no `image`, expected that of a container with heg and hegc")?;
    let mut script = HEAD.to_owned();
    for stage in stages {
        let groups = stage.groups.iter();
        let items: Vec<Value> = groups
            .map(|group| job(stage, group, matrix, image))
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        script.push_str(&format!(
            "\nkubectl apply -f - <<'JOBS'\n{}\nJOBS\n",
            serde_json::to_string_pretty(&list)?
        ));
        script.push_str(&format!("wait_for {}\n", stage.name));
    }
    Ok(script)
}

fn job(stage: &Stage, group: &Group, matrix: &FarmMatrix, image: &str) -> Value {
    // The index of a pod chooses its command.
    let cases = group.commands.iter().enumerate();
    let cases: String = cases
        .map(|(index, command)| format!("{index}) exec {command} ;;\n"))
        .collect();
    let command = format!("case $JOB_COMPLETION_INDEX in\n{cases}esac");
    let mut mounts = vec![json!({"name": "farm", "mountPath": matrix.store})];
    let mut volumes = vec![match &matrix.shared {
        Some(_) => json!({"name": "farm", "emptyDir": {}}),
        None => json!({"name": "farm", "persistentVolumeClaim": {"claimName": "heg-farm"}}),
    }];
    let secrets = matrix.shared.iter();
    let secrets: Vec<Value> = secrets
        .map(|_| json!({"secretRef": {"name": "heg-farm-bucket"}}))
        .collect();
    if let Some(key) = &matrix.key {
        mounts.push(json!({"name": "key", "mountPath": key, "subPath": "key", "readOnly": true}));
        volumes.push(json!({"name": "key", "secret": {"secretName": "heg-farm-key"}}));
    }
    let selector = group.label.as_ref();
    let selector = selector.map(|label| json!({"heg.farm/label": label}));
    let name = format!("heg-{}-{}", stage.name, group.name().replace('.', "-"));
    let count = group.commands.len();
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {"heg.farm/stage": stage.name}},
        "spec": {
            "completionMode": "Indexed", "completions": count, "parallelism": count, "backoffLimitPerIndex": 3,
            "template": {"spec": {
                "restartPolicy": "Never",
                "nodeSelector": selector.unwrap_or(json!({})),
                "volumes": volumes,
                "containers": [{
                    "name": "job", "image": image, "command": ["/bin/sh", "-c", command],
                    "resources": {"requests": {"memory": format!("{}Gi", group.memory_gb)}},
                    "volumeMounts": mounts, "envFrom": secrets,
                }],
            }},
        },
    })
}

const HEAD: &str = r#"#!/usr/bin/env bash
# Labels are `heg.farm/label` of nodes. The claim `heg-farm` is the folder that all share; the secret `heg-farm-key` has the
# farm's key as `key`; beside a bucket `heg-farm-bucket` has its credentials, by the names of the environment.
# Applied again, jobs that are there stay as they are.
set -euo pipefail

wait_for() {
  kubectl wait --for=condition=complete --timeout=24h job -l "heg.farm/stage=$1"
}
"#;
