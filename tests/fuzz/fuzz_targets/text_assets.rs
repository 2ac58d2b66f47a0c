//! Reads arbitrary bytes as one of the text files of a model folder; the first byte chooses which.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use heg_ingest::{ConfigJson, TextAssets};

/// The folder in which the file is placed, one for each process.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("heg-fuzz-text-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    folder
});

pub(crate) fn run(input: &[u8]) {
    let [which, content @ ..] = input else {
        return;
    };
    let name = FILES[usize::from(*which) % FILES.len()];
    let config = match name {
        "config.json" => ConfigJson::parse(Path::new(name), content),
        _ => ConfigJson::parse(Path::new("config.json"), b"{}"),
    };
    let Ok(config) = config else { return };
    let file = FOLDER.join(name);
    fs::write(&file, content).expect("a temporary file");
    let assets = TextAssets::read(&FOLDER, &config);
    fs::remove_file(&file).expect("the file is there");
    let Ok(assets) = assets else { return };
    assert!(assets.tokenizer.is_none());
    let mut ids = assets.eos_ids.clone();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), assets.eos_ids.len(), "ids come once");
}

const FILES: [&str; 5] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
];
