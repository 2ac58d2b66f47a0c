//! Baked states: beginnings of prompts whose keys and values are in the bundle, and so for everyone who has it.
//!
//! Whoever submits a request compares its tokens with those of the states. The lane that runs the request first copies
//! the mapped pages, as it reads a page of kept state; if one of them is not what the bundle says, the prompt is
//! computed, and the state ends before that page from then on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use heg_artifacts::manifest::{BakedState, Manifest, STATE_HEAD_BYTES, StateForm};
use heg_artifacts::{Bundle, SectionId, computation_id};
use heg_exec::mem::{KvCache, KvShape};
use heg_exec::{Descent, DescentStep, Loader, Reason};
use heg_state::{
    HEAD_BYTES, Miss, PAGE_TOKENS, PageHead, StateModel, public_heads, public_payload, read_pages,
};

use crate::error::EngineError;

/// The baked states that an engine uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StateChoice {
    /// Every state whose tokens a prompt begins with.
    #[default]
    Any,
    /// The state of this name alone.
    Named(String),
    /// None.
    Off,
}

/// Counts of baked states since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BakedStatus {
    /// Prompts that began with a state.
    pub found: u64,
    /// Reads that met a damaged page.
    pub damaged: u64,
    /// Tokens whose keys and values were read, by the name of the state.
    pub read_tokens: Vec<(String, u64)>,
    /// Time that it took to read them, in µs.
    pub read_us: u64,
    /// The latest trouble with a state.
    pub trouble: Option<String>,
}

/// The baked states of an engine's bundle. Clones share them.
#[derive(Clone)]
pub(super) struct BakedStates(Arc<Shared>);

struct Shared {
    bundle: Arc<Bundle>,
    states: Vec<UsableState>,
    /// States of another form, with the reason.
    descents: Vec<Descent>,
    status: Mutex<BakedStatus>,
}

/// A state of the form that this machine computes.
struct UsableState {
    /// Its place in the manifest.
    at: usize,
    /// The heads that its pages must have, made when a prompt first begins with them; `None` if there are none.
    heads: OnceLock<Option<Vec<PageHead>>>,
    /// Pages before the first one that was found damaged.
    good_pages: AtomicUsize,
}

/// The rows of a state that a prompt begins with, to be read into a cache.
#[derive(Clone)]
pub(super) struct BakedRows {
    states: BakedStates,
    /// Its place among the usable states.
    at: usize,
    tokens: usize,
}

const _: () = assert!(HEAD_BYTES as u64 == STATE_HEAD_BYTES);

/// Returns the model that the heads of a baked state's pages name: what the bundle computes, in a form.
///
/// # Errors
///
/// The errors of [`computation_id`].
pub fn state_model(
    manifest: &Manifest,
    form: StateForm,
) -> Result<StateModel, heg_artifacts::Error> {
    let StateForm {
        arithmetic,
        activations,
        kv_cache,
    } = form;
    let text = format!("arithmetic {arithmetic}, activations {activations:?}, cache {kv_cache:?}");
    let model = &manifest.model;
    let width = model.kv_heads.saturating_mul(model.head_dim);
    let row_bytes = kv_cache.cache_row_bytes(width, model.head_dim);
    let row_bytes = row_bytes.unwrap_or(u64::MAX);
    Ok(StateModel {
        bundle: *computation_id(manifest)?.as_bytes(),
        form: *SectionId::of(text.as_bytes()).as_bytes(),
        payload_bytes: (2 * manifest.layers.len() as u64 * PAGE_TOKENS as u64)
            .saturating_mul(row_bytes),
    })
}

impl BakedStates {
    /// Looks through the states of a loader's bundle; `None` if it has none, or none is wanted.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoState`] if the bundle has no state of the name that is asked for.
    pub(super) fn new(
        loader: &Loader,
        shape: KvShape,
        choice: &StateChoice,
    ) -> Result<Option<Self>, EngineError> {
        let all = &loader.bundle().manifest().states;
        let is_wanted = |state: &BakedState| match choice {
            StateChoice::Any => true,
            StateChoice::Named(name) => state.name == *name,
            StateChoice::Off => false,
        };
        let wanted: Vec<(usize, &BakedState)> = all
            .iter()
            .enumerate()
            .filter(|(_, state)| is_wanted(state))
            .collect();
        if wanted.is_empty() {
            return match choice {
                StateChoice::Named(name) => Err(EngineError::NoState {
                    name: name.clone(),
                    known: all.iter().map(|state| state.name.clone()).collect(),
                }),
                StateChoice::Any | StateChoice::Off => Ok(None),
            };
        }
        let here = loader.state_form(shape);
        let (mut states, mut descents) = (Vec::new(), Vec::new());
        for (at, state) in wanted {
            match unlike(state, &here) {
                Some(reason) => descents.push(descent(state, reason)),
                None => states.push(UsableState {
                    at,
                    heads: OnceLock::new(),
                    good_pages: AtomicUsize::new(state.pages.len()),
                }),
            }
        }
        Ok(Some(Self(Arc::new(Shared {
            bundle: Arc::clone(loader.bundle()),
            states,
            descents,
            status: Mutex::default(),
        }))))
    }

    /// The states of another form than this machine's, with the reason.
    pub(super) fn descents(&self) -> &[Descent] {
        &self.0.descents
    }

    /// Finds the state that a prompt has most tokens in common with, at least as many as a page has: prompts of one model
    /// have their first tokens in common with any state.
    pub(super) fn find(&self, prompt: &[u32]) -> Option<BakedRows> {
        let found = self.0.states.iter().enumerate();
        let found = found.map(|(at, usable)| (at, self.common_tokens(usable, prompt)));
        let (at, tokens) = found.max_by_key(|(_, tokens)| *tokens)?;
        let usable = self.0.states.get(at)?;
        if tokens < PAGE_TOKENS || self.heads(usable).is_none() {
            return None;
        }
        self.status_mut().found += 1;
        Some(BakedRows {
            states: self.clone(),
            at,
            tokens,
        })
    }

    /// Number of tokens of a state's good pages that a prompt begins with.
    fn common_tokens(&self, usable: &UsableState, prompt: &[u32]) -> usize {
        let Some(state) = self.state(usable) else {
            return 0;
        };
        let same = state.tokens.iter().zip(prompt);
        let same = same.take_while(|(ours, theirs)| ours == theirs).count();
        let good = usable.good_pages.load(Ordering::Relaxed);
        same.min(good.saturating_mul(PAGE_TOKENS))
    }

    fn state(&self, usable: &UsableState) -> Option<&BakedState> {
        self.0.bundle.manifest().states.get(usable.at)
    }

    fn heads<'s>(&'s self, usable: &'s UsableState) -> Option<&'s [PageHead]> {
        let make = || {
            let state = self.state(usable)?;
            let model = state_model(self.0.bundle.manifest(), state.form).ok()?;
            Some(public_heads(&model, &state.tokens))
        };
        usable.heads.get_or_init(make).as_deref()
    }

    fn status_mut(&self) -> MutexGuard<'_, BakedStatus> {
        let status = &self.0.status;
        status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts since the start.
    pub(super) fn status(&self) -> BakedStatus {
        self.status_mut().clone()
    }
}

impl BakedRows {
    /// Number of rows.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Copies the first `tokens` rows into a cache.
    ///
    /// # Errors
    ///
    /// [`EngineError::KeptState`] if one of the pages is damaged; some rows may have been written.
    pub(super) fn read(&self, room: &KvCache, tokens: usize) -> Result<(), EngineError> {
        let shared = &self.states.0;
        let gone = || Miss::Gone { index: 0 };
        let usable = shared.states.get(self.at).ok_or_else(gone)?;
        let state = self.states.state(usable).ok_or_else(gone)?;
        let heads = self.states.heads(usable).ok_or_else(gone)?;
        let start = Instant::now();
        let read = read_pages(tokens.div_ceil(PAGE_TOKENS), &|at, _| {
            let index = at as u64;
            let (page, head) = state
                .pages
                .get(at)
                .zip(heads.get(at))
                .ok_or(Miss::Gone { index })?;
            let bytes = shared.bundle.section(*page);
            let bytes = bytes.map_err(|error| Miss::Section {
                index,
                source: Box::new(error),
            })?;
            let first = at * PAGE_TOKENS;
            let count = tokens.saturating_sub(first).min(PAGE_TOKENS);
            let placed = room.place_rows(first, count, public_payload(head, bytes)?);
            placed.then_some(()).ok_or(Miss::Room { index })
        });
        let mut status = self.states.status_mut();
        if let Err(miss) = read {
            let good = usize::try_from(miss.index()).unwrap_or(0);
            usable.good_pages.fetch_min(good, Ordering::Relaxed);
            status.damaged += 1;
            let name = &state.name;
            status.trouble = Some(format!("state `{name}`: {}", heg_exec::chain(&miss)));
            return Err(miss.into());
        }
        let of_state = status.read_tokens.iter_mut();
        match of_state.into_iter().find(|(name, _)| *name == state.name) {
            Some((_, count)) => *count += tokens as u64,
            None => status.read_tokens.push((state.name.clone(), tokens as u64)),
        }
        status.read_us += start.elapsed().as_micros() as u64;
        Ok(())
    }
}

/// The reason why a state is not what this machine computes; `None` if it is.
fn unlike(state: &BakedState, here: &Result<StateForm, String>) -> Option<Reason> {
    if state.page_tokens as usize != PAGE_TOKENS {
        return Some(Reason::StateForm {
            baked: format!("pages of {} tokens", state.page_tokens),
            here: format!("pages have {PAGE_TOKENS}"),
        });
    }
    let told = |form: &StateForm| {
        format!(
            "{:?} activations, {:?} keys and values, arithmetic {}",
            form.activations, form.kv_cache, form.arithmetic
        )
    };
    match here {
        Ok(form) if *form == state.form => None,
        Ok(form) => Some(Reason::StateForm {
            baked: told(&state.form),
            here: format!("devices have {}", told(form)),
        }),
        Err(why) => Some(Reason::StateForm {
            baked: told(&state.form),
            here: why.clone(),
        }),
    }
}

fn descent(state: &BakedState, reason: Reason) -> Descent {
    let step = |source: &str| DescentStep {
        device: "CPU".to_owned(),
        role: "cpu",
        shape: None,
        source: Some(source.to_owned()),
    };
    Descent {
        kernel: format!("state `{}`", state.name),
        from: step("pages"),
        to: Some(step("prefill")),
        reason,
    }
}
