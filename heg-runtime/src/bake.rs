//! Baking: the keys and values of the tokens that conversations begin with are computed once, and become a part of the
//! bundle (`heg-runtime/state/STATE.md`).

use std::path::Path;

use heg_artifacts::manifest::{BakedState, Manifest, StateForm};
use heg_artifacts::{Section, SectionId, with_state, write_amended};
use heg_engine::state_model;
use heg_exec::{ExecError, Executor};
use heg_sched::{Logits, chunks};
use heg_state::{PAGE_TOKENS, public_heads, public_page};
use heg_text::{ChatTemplate, Conversation, Message, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::RuntimeError;
use crate::load::Loaded;

/// The messages and tools that conversations begin with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beginning {
    /// The messages, mostly one of the system.
    pub messages: Vec<Message>,
    /// The tools, as OpenAI's chat interface has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

/// A state that was computed, to be [written](Self::write) into a bundle.
pub struct Baking {
    manifest: Manifest,
    sections: Vec<Vec<u8>>,
    /// The state.
    pub state: BakedState,
}

impl Beginning {
    /// Returns the tokens that every conversation with this beginning has first, whatever the user says.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Text`] if the template refuses such a conversation.
    pub fn tokens(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, RuntimeError> {
        let mut common: Option<Vec<u32>> = None;
        for said in PROBES {
            let mut messages = self.messages.clone();
            for (at, text) in said.iter().enumerate() {
                let role = ["user", "assistant"][at % 2];
                messages.push(Message::new(role, *text));
            }
            let conversation = Conversation {
                messages,
                tools: self.tools.clone(),
                add_generation_prompt: true,
                ..Conversation::default()
            };
            let prompt = template.prompt(&conversation, tokenizer, usize::MAX)?;
            common = Some(match common {
                None => prompt,
                Some(mut common) => {
                    let same = common.iter().zip(&prompt).take_while(|(a, b)| a == b);
                    common.truncate(same.count());
                    common
                }
            });
        }
        Ok(common.unwrap_or_default())
    }
}

impl Loaded {
    /// Returns what a baked state of the bundle begins with.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoState`](heg_engine::EngineError::NoState), [`RuntimeError::Bundle`] if the section is damaged,
    /// [`RuntimeError::Beginning`] if it is nonsense.
    pub fn beginning(&self, state: &str) -> Result<Beginning, RuntimeError> {
        let states = &self.bundle().manifest().states;
        let Some(found) = states.iter().find(|it| it.name == state) else {
            return Err(RuntimeError::Engine(heg_engine::EngineError::NoState {
                name: state.to_owned(),
                known: states.iter().map(|state| state.name.clone()).collect(),
            }));
        };
        let text = self.section(found.beginning)?;
        serde_json::from_slice(&text).map_err(|source| RuntimeError::Beginning {
            state: state.to_owned(),
            source,
        })
    }
}

/// Computes a state of the executor's bundle: the tokens that conversations begin with. Its last page may hold fewer than
/// the others.
///
/// # Errors
///
/// [`RuntimeError::ShortBeginning`] if they are fewer than a page has, [`RuntimeError::NoStateForm`] if this machine computes keys
/// and values that other machines cannot, and errors of running the model.
pub fn bake(
    executor: &mut Executor,
    name: &str,
    beginning: &Beginning,
    tokens: &[u32],
) -> Result<Baking, RuntimeError> {
    let form = executor.state_form();
    let form: StateForm = form.map_err(|why| RuntimeError::NoStateForm { why })?;
    let context = executor.manifest().model.context_tokens as usize;
    if tokens.len() < PAGE_TOKENS {
        return Err(RuntimeError::ShortBeginning {
            tokens: tokens.len(),
            expected: PAGE_TOKENS,
        });
    }
    // An answer has at least one token.
    if tokens.len() >= context {
        let asked = tokens.len() + 1;
        return Err(ExecError::Context { asked, context }.into());
    }
    let mut sequence = executor.sequence()?;
    for chunk in chunks(tokens.len(), executor.options().chunk_tokens) {
        let chunk = tokens.get(chunk).unwrap_or_default();
        executor.prefill(&mut sequence, chunk, Logits::None)?;
    }
    let model = state_model(executor.manifest(), form).map_err(unencoded)?;
    let heads = public_heads(&model, tokens);
    let pages = heads.iter().enumerate();
    let pages = pages.map(|(at, head)| {
        let rows = sequence.rows(at * PAGE_TOKENS, head.tokens().len());
        let rows = rows.ok_or(ExecError::Context {
            asked: tokens.len(),
            context,
        })?;
        Ok(public_page(head, &rows))
    });
    let pages: Vec<Vec<u8>> = pages.collect::<Result<_, ExecError>>()?;
    let text = serde_json::to_vec(beginning).map_err(|source| RuntimeError::Beginning {
        state: name.to_owned(),
        source,
    })?;
    let state = BakedState {
        name: name.to_owned(),
        beginning: SectionId::of(&text),
        form,
        page_tokens: PAGE_TOKENS as u32,
        tokens: tokens.to_vec(),
        pages: pages.iter().map(|page| SectionId::of(page)).collect(),
    };
    let sections: Vec<Vec<u8>> = [text].into_iter().chain(pages).collect();
    Ok(Baking {
        manifest: executor.manifest().clone(),
        sections,
        state,
    })
}

impl Baking {
    /// Writes the bundle with the state, in place of one of the same name, to `path`, which may be the bundle's own.
    /// Returns the name and length of the new bundle. `progress` gets the number of bytes written.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Bundle`] if a section is damaged, the state's name is not allowed, or the file cannot be written.
    pub fn write(
        &self,
        loaded: &Loaded,
        path: &Path,
        progress: &dyn Fn(u64),
    ) -> Result<(SectionId, u64), RuntimeError> {
        let listed: Vec<Section> = self
            .sections
            .iter()
            .map(|bytes| Section {
                id: SectionId::of(bytes),
                bytes: bytes.len() as u64,
            })
            .collect();
        let manifest = with_state(&self.manifest, self.state.clone(), &listed);
        let bundle = loaded.bundle();
        let written = write_amended(path, &manifest, bundle, &self.sections, progress);
        let written = written.map_err(|source| RuntimeError::Bundle {
            path: path.to_owned(),
            source,
        })?;
        Ok((written.manifest_id, written.bytes))
    }

    /// Bytes of the state's sections.
    pub fn bytes(&self) -> u64 {
        self.sections.iter().map(|bytes| bytes.len() as u64).sum()
    }
}

fn unencoded(error: heg_artifacts::Error) -> RuntimeError {
    let why = heg_exec::chain(&error);
    RuntimeError::NoStateForm { why }
}

/// Words of users in conversations that are compared: first letters of many kinds, since a tokenizer may join the last
/// letters of the beginning with the first of these, and a conversation of several turns.
const PROBES: [&[&str]; 12] = [
    &["a"],
    &["Z"],
    &["7"],
    &[" b"],
    &["\nc"],
    &[". d"],
    &["<e>"],
    &["é"],
    &["漢字"],
    &["😀"],
    &["{\"f\": 1}"],
    &["g", "h", "i"],
];
