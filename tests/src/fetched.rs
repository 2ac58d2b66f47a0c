//! Models fetched by `cargo xtask fetch-model`, for tests that use them if they exist.

use std::path::{Path, PathBuf};

/// Returns the file of SmolLM2-135M-Instruct; if it is missing, reports that the test was skipped.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = FOLDERS.map(|folder| workspace.join(folder).join(SMOLLM2));
    let found = files.into_iter().find(|file| file.is_file());
    if found.is_none() {
        let how = "run: cargo xtask fetch-model smollm2-135m-instruct";
        crate::skipped(&format!("{test}: no model ({how})"));
    }
    found
}

/// Returns the folder of all-MiniLM-L6-v2; if it is missing, reports that the test was skipped.
pub fn minilm(test: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join(FOLDERS[0]).join(MINILM);
    if folder.is_dir() {
        return Some(folder);
    }
    let how = "run: cargo xtask fetch-model all-minilm-l6-v2";
    crate::skipped(&format!("{test}: no model ({how})"));
    None
}

/// The folders of models, of this and of earlier versions.
const FOLDERS: [&str; 2] = ["bundles/models", "artifacts/models"];

const MINILM: &str = "all-minilm-l6-v2/model";

const SMOLLM2: &str = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf";
