//! A model that thinks: a tiny agent whose words for "Hi" and "thanks" are the markers of thoughts, so that of "Hi Ben, thanks
//! for the wagon!" the first half is one.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::model_folder::ModelFolder;
use crate::{Workbench, fixture};

/// The system message of a question.
pub const SYSTEM: &str = "You answer chats in the user's name. Be brief.";

/// A question that the model thinks about.
pub const QUESTION: &str = "Status: none\nChat with Ben:\nBen: Here is the pale wagon for you.";

/// The thought about [`QUESTION`].
pub const THOUGHT: &str = "Ben,";

/// The answer behind it.
pub const ANSWER: &str = "for the pale wagon!";

/// Compiles the model in a workbench; returns its bundle.
///
/// # Errors
/// The files of the fixture are not as expected.
pub fn compile(workbench: &Workbench) -> Result<PathBuf, Box<dyn Error>> {
    let folder = ModelFolder::copy(&fixture("tiny-agent"), &workbench.path("tiny-agent"))?;
    let tokenizer = folder.file("tokenizer.json");
    fs::write(&tokenizer, with_markers(&fs::read_to_string(&tokenizer)?)?)?;
    let template = folder.file("chat_template.jinja");
    fs::write(&template, with_thoughts(&fs::read_to_string(&template)?)?)?;
    Ok(workbench.compile(folder.path(), "thinker", |_| ())?.0)
}

/// Returns a `tokenizer.json` in which two words are markers. Texts no longer have their tokens.
fn with_markers(text: &str) -> Result<String, Box<dyn Error>> {
    let mut file: Value = serde_json::from_str(text)?;
    for (parts, marker) in [(["H", "i"], "<think>"), (["Ġth", "anks"], "</think>")] {
        let vocab = file["model"]["vocab"].as_object_mut();
        let vocab = vocab.ok_or("the vocabulary is no object")?;
        let id = vocab.remove(&parts.concat()).ok_or("a word is missing")?;
        vocab.insert(marker.to_owned(), id);
        let merges = file["model"]["merges"].as_array_mut();
        let merges = merges.ok_or("the merges are no list")?;
        merges.retain(|merge| *merge != json!(parts));
    }
    Ok(file.to_string())
}

/// Returns a chat template that shows thoughts of earlier answers, and opens one if it is asked to.
fn with_thoughts(text: &str) -> Result<String, Box<dyn Error>> {
    let content = "message['content'] | trim + '<|eot_id|>' }}\n    {%- endif %}\n{%- endfor %}";
    let thought = "('<think>' + message['reasoning_content'] + '</think>' if message['reasoning_content'] else '') + ";
    let answer = "<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}";
    let opened = answer.replace("' }}", "' + ('<think>\\n' if enable_thinking else '') }}");
    if !text.contains(content) || !text.contains(answer) {
        return Err(format!("the template has another text: {text}").into());
    }
    let text = text.replace(content, &format!("{thought}{content}"));
    Ok(text.replace(answer, &opened))
}
