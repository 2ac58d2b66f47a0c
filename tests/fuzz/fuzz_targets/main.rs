//! All fuzz targets as one program, so that what they link is linked once. libFuzzer leaves flags that begin with `--`
//! to us: `--target=NAME` says which reader its inputs go to.

#![no_main]

mod annotations;
mod blob;
mod blocks;
mod bundle;
mod chat_prompt;
mod config;
mod execute;
mod gguf;
mod history;
mod http_body;
mod kept_page;
mod messages_body;
mod npu_ports;
mod partitions;
mod profile;
mod program;
mod release;
mod responses_body;
mod safetensors;
mod schema;
mod ship;
mod spec;
mod spirv;
mod template;
mod text_assets;
mod text_files;
mod tokenizer;
mod trace;
mod verdicts;
mod worker_line;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

/// A target: reads foreign bytes, and panics where a reader breaks a promise.
type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 30] = [
    ("annotations", annotations::run),
    ("blob", blob::run),
    ("blocks", blocks::run),
    ("bundle", bundle::run),
    ("chat_prompt", chat_prompt::run),
    ("config", config::run),
    ("execute", execute::run),
    ("gguf", gguf::run),
    ("history", history::run),
    ("http_body", http_body::run),
    ("kept_page", kept_page::run),
    ("messages_body", messages_body::run),
    ("npu_ports", npu_ports::run),
    ("partitions", partitions::run),
    ("profile", profile::run),
    ("program", program::run),
    ("release", release::run),
    ("responses_body", responses_body::run),
    ("safetensors", safetensors::run),
    ("schema", schema::run),
    ("ship", ship::run),
    ("spec", spec::run),
    ("spirv", spirv::run),
    ("template", template::run),
    ("text_assets", text_assets::run),
    ("text_files", text_files::run),
    ("tokenizer", tokenizer::run),
    ("trace", trace::run),
    ("verdicts", verdicts::run),
    ("worker_line", worker_line::run),
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

fuzz_target!(|input: &[u8]| CHOSEN.get_or_init(chosen)(input));

/// Returns the target that the command line names; ends the program if it names none that there is.
fn chosen() -> Target {
    let name =
        std::env::args().find_map(|argument| Some(argument.strip_prefix("--target=")?.to_owned()));
    let name = name.unwrap_or_default();
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.map(|(_, run)| *run).unwrap_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|(known, _)| *known).collect();
        eprintln!(
            "`--target=NAME` has to name a fuzz target, found `{name}`; there are: {}",
            known.join(", ")
        );
        std::process::exit(2)
    })
}
