//! Restricts an answer to a form: a JSON schema, or calls of tools.

use std::path::{Path, PathBuf};

use clap::Args;
use heg_runtime::{Loaded, RuntimeError};
use heg_text::{AnswerForm, Conversation, Grammars, ThoughtParser, Tokenizer, ToolSyntax};
use serde::de::DeserializeOwned;

use crate::failure::input;
use crate::run::Held;
use crate::text_guard::guarded;

/// The form that the answer must have.
#[derive(Args)]
pub(crate) struct Form {
    /// A JSON schema that the answer must be an instance of
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tools", "tool_choice"])]
    json_schema: Option<PathBuf>,
    /// Tools to offer, a JSON list as OpenAI's chat interface has it; instead of those of --messages
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_ids", "raw"])]
    tools: Option<PathBuf>,
    /// Tools that the answer may call: `auto`, `none`, `required`, or the name of one [default with --tools: auto]
    #[arg(long, value_name = "CHOICE", conflicts_with_all = ["prompt_ids", "raw"])]
    tool_choice: Option<String>,
}

impl Form {
    /// Replaces the conversation's tools with those of the command line.
    pub(crate) fn offer_tools(&self, conversation: &mut Conversation) -> anyhow::Result<()> {
        if let Some(path) = &self.tools {
            conversation.tools = read_json(path)?;
        }
        Ok(())
    }

    /// Prepares the form of an answer to `conversation`, behind what the model thinks first, if it does.
    pub(crate) fn hold(
        &self,
        loaded: &Loaded,
        tokenizer: Option<&Tokenizer>,
        conversation: Option<&Conversation>,
        thoughts: Option<&ThoughtParser>,
    ) -> anyhow::Result<Held> {
        let calls = self.tools.is_some() || self.tool_choice.is_some();
        if !calls && self.json_schema.is_none() {
            return Ok(Held::default());
        }
        let Some(tokenizer) = tokenizer else {
            return Err(input(
                "the bundle has no tokenizer: `--json-schema` needs one",
            ));
        };
        guarded(|| self.compiled(loaded, tokenizer, conversation, thoughts))
    }

    fn compiled(
        &self,
        loaded: &Loaded,
        tokenizer: &Tokenizer,
        conversation: Option<&Conversation>,
        thoughts: Option<&ThoughtParser>,
    ) -> anyhow::Result<Held> {
        let eos_ids = &loaded.bundle().manifest().text.eos_ids;
        let grammars = Grammars::new(tokenizer, eos_ids).map_err(RuntimeError::from)?;
        let form = if let Some(path) = &self.json_schema {
            AnswerForm::JsonSchema(read_json(path)?)
        } else {
            let syntax = ToolSyntax::of(&loaded.chat_template()?, tokenizer);
            let tools = conversation.map_or(&[][..], |conversation| &conversation.tools);
            let choice = self.tool_choice.as_deref();
            let form = syntax.and_then(|syntax| AnswerForm::of_tools(syntax, tools, choice));
            form.map_err(RuntimeError::from)?
        };
        let syntax = form.call_syntax();
        let form = match thoughts {
            Some(thoughts) => thoughts.before(form),
            None => form,
        };
        let grammar = grammars.form(form).map_err(RuntimeError::from)?;
        Ok(Held {
            restriction: grammar.map(|grammar| Box::new(grammar) as _),
            syntax,
        })
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| input(format!("cannot read `{}`: {error}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| input(format!("`{}`: {error}", path.display())))
}
