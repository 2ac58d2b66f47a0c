//! The laboratory's commands: the one list of them, for the front door's help and for the laboratory itself.

use crate::workspace::Build;

/// A command of the laboratory.
#[derive(Debug, Clone, Copy)]
pub struct LabCommand {
    /// The command's name, as typed.
    pub name: &'static str,
    /// The command's description in the help.
    pub about: &'static str,
    /// Build of the laboratory: a release build if it includes the engine to be measured.
    pub build: Build,
}

/// All commands, in the order of the help.
pub const LAB_COMMANDS: [LabCommand; 16] = [
    of_dev(
        "bench-attacks",
        "Attack the release server with hostile clients and models, beside another client, and print one table",
    ),
    of_dev(
        "bench-changes",
        "Ask a model for answers, one for vectors and one for scores in turns, on HEG and on llama.cpp's router",
    ),
    of_dev(
        "bench-day",
        "Live a person's day with agents, background work and a restart on HEG and on llama.cpp's router",
    ),
    of_dev(
        "bench-drafts",
        "Replay known answers with several ways to draft: tokens per verification, and what drafting takes",
    ),
    of_release(
        "bench-pair",
        "Measure two lanes that share every kernel beside one lane and one device with two threads",
    ),
    of_dev(
        "bench-peers",
        "Measure HEG beside OpenVINO GenAI and llama.cpp on the same model, and print one table",
    ),
    of_dev(
        "bench-serve",
        "Replay mixed traces against HEG, OpenVINO GenAI and llama-server, and print one table",
    ),
    of_dev(
        "bench-ship",
        "Measure pulls from a registry beside skopeo and curl, interrupted pulls, edits, opening by name, and fit reports",
    ),
    of_release(
        "bench-speculation",
        "Answer questions of data sets without drafts, with them, and by OpenVINO GenAI with prompt look-up",
    ),
    of_dev(
        "bench-state",
        "Measure answers behind kept and baked state, what keeping costs, and whether strangers notice",
    ),
    of_dev(
        "bench-texts",
        "Measure vectors of texts beside OpenVINO GenAI and llama.cpp: rates, starts, and distance from f32",
    ),
    of_dev(
        "check-twin",
        "Replay a run on real lanes in the simulator, and fail where both are too far apart",
    ),
    of_dev(
        "evaluate",
        "Run the papers' evaluation in virtual time: tables and figures beside theirs",
    ),
    of_dev(
        "performance",
        "Make the page of performance from reports of bench-peers",
    ),
    of_dev(
        "quality",
        "Measure how far each form on each device is from the f32 model, beside OpenVINO GenAI",
    ),
    of_dev(
        "model-sheet",
        "Write what the simulator has to know of a bundle's model: a RON file of some tens of kilobytes",
    ),
];

const fn of_dev(name: &'static str, about: &'static str) -> LabCommand {
    LabCommand {
        name,
        about,
        build: Build::Dev,
    }
}

const fn of_release(name: &'static str, about: &'static str) -> LabCommand {
    LabCommand {
        name,
        about,
        build: Build::Release,
    }
}
