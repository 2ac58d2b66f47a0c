//! Switching blocks of layers between a graph for prompts and one for the verification of drafts, on devices whose forms
//! have their weights inside (sd.npu §3.2).
//!
//! The long graph of a layer is its form in the bundle, the short one the same for [`SHORT_ROWS`](crate::padding::SHORT_ROWS) rows. A block has one of
//! them at a time: the other is dropped before a load begins, so that its weights are in memory once. A chunk goes through
//! a short graph in several calls, which gives the same rows, so a block may be switched at any time; a launch waits only
//! for a load of its own block. Which block is loaded when, [`heg_sched::plan`] says, by times that are measured here.
//! Blocks go back to their long graphs when nothing is to do.
//!
//! A short graph that cannot be loaded leaves the block with its long one. If that cannot be loaded either, the launch that
//! waits for it fails, and the next one tries again.

mod graph;
mod loads;
mod pace;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use heg_artifacts::manifest::{Binding, Manifest};
use heg_sched::{Launch, Load, Switching, WorkStage, plan};
use heg_spec::Group;

use super::form::PluginForm;
use crate::backend::{LoadPermit, Tailor};
use crate::batch::Coming;
use crate::error::ExecError;
use crate::form::Form;
use crate::ladder::Rung;
use crate::place::{Place, place_kernel};
use crate::stage_orders::StageOrders;
use crate::table::FormTable;
use graph::Graph;
use loads::{Loaded, Loads};
use pace::BlockPace;

/// Most blocks. Chosen: the paper draws six; more would be loaded one by one for longer than a prompt lasts.
const BLOCKS_MAX: usize = 8;

/// Chunks at the end of a prompt that a plan is made for: those before them are too early to switch.
const PLANNED_CHUNKS: usize = 8;

/// Failed loads of a block's short graph after which it keeps the long one.
const FAILURES_MAX: u32 = 3;

/// The graphs of a block.
#[derive(Debug)]
enum Holding {
    Graph(Graph),
    Loading(Graph),
    /// Nothing, since its long graph could not be loaded; for whom it may concern, why.
    Nothing(Option<ExecError>),
}

/// Consecutive layers that are switched together.
struct Block {
    layers: Range<u32>,
    /// The places of its kernels with weights, and the rungs of their long forms.
    places: Vec<(Place, Rung)>,
    holding: Holding,
    /// Loads of its short graph that failed.
    failures: u32,
}

/// The blocks of a model that is switched.
struct Blocks {
    /// The group that a layer begins with.
    first: Group,
    blocks: Vec<Block>,
    /// Loads that are to begin, in order.
    wanted: VecDeque<(usize, Graph)>,
    loads: Loads,
    plan: Option<PromptPlan>,
    pace: BlockPace,
}

/// When blocks are switched while a prompt is computed.
struct PromptPlan {
    loads: Vec<Load>,
    chunk_tokens: usize,
    /// Tokens of the prompt that were left when it was made, and that are left now.
    first_left: usize,
    left: usize,
}

/// The switching of an executor's blocks; nothing is done where all graphs are resident.
pub(super) struct GraphSwitch {
    way: Switching,
    /// Made when all kernels are ready; `None` where no form has its weights inside.
    blocks: Option<Blocks>,
    coming: Coming,
    /// Asked before every load.
    permit: Option<LoadPermit>,
    /// Whether every block is switched each time before it computes, whatever pays.
    always: bool,
}

impl GraphSwitch {
    /// For a way to switch.
    pub(super) fn new(way: Switching) -> Self {
        Self {
            way,
            blocks: None,
            coming: Coming::Answers,
            permit: None,
            always: false,
        }
    }

    /// Takes the forms that are ready for the long graphs.
    pub(super) fn begin(&mut self, tailor: &Tailor, manifest: &Manifest, forms: &mut FormTable) {
        if self.way != Switching::Resident {
            let loads = Loads::start(Arc::clone(tailor), self.permit.clone());
            self.blocks = Blocks::new(manifest, forms, loads);
        }
    }

    /// Announces what the launches that follow are for.
    pub(super) fn expect(&mut self, coming: Coming) {
        self.coming = coming;
    }

    /// Uses a time without launches: has the next block go back to the graph for prompts. Says whether there is more to do.
    pub(super) fn rest(&mut self, forms: &mut FormTable) -> bool {
        match &mut self.blocks {
            Some(blocks) if !self.always => blocks.go_back(forms),
            _ => false,
        }
    }

    /// Whether the forms of a launch are there.
    pub(super) fn is_at_hand(&mut self, launch: Launch, forms: &mut FormTable) -> bool {
        let block = self.blocks.as_mut().and_then(|blocks| {
            let at = blocks.of(launch)?;
            Some((blocks, at))
        });
        let Some((blocks, at)) = block else {
            return true;
        };
        while let Ok(Some(loaded)) = blocks.loads.finished() {
            blocks.take_in(loaded, forms);
        }
        matches!(blocks.blocks[at].holding, Holding::Graph(_))
    }

    /// Waits until the forms of a launch are there, and begins loads that are due before it.
    pub(super) fn switch_before(
        &mut self,
        launch: Launch,
        tokens: usize,
        forms: &mut FormTable,
        cancel: Option<&AtomicBool>,
    ) -> Result<(), ExecError> {
        let Self {
            blocks: Some(blocks),
            coming,
            always,
            ..
        } = self
        else {
            return Ok(());
        };
        let Some(at) = blocks.of(launch) else {
            return Ok(());
        };
        let is_boundary = launch.group == blocks.first
            && launch.layer == blocks.blocks.get(at).map(|block| block.layers.start);
        if is_boundary && *always {
            blocks.switch_next(at, forms);
        } else if is_boundary {
            blocks.arrive(at, tokens, *coming, forms);
        }
        blocks.settle(at, forms, cancel)?;
        if is_boundary {
            blocks.note(at, tokens);
        }
        Ok(())
    }

    /// Asks before every load of a graph whether it may succeed.
    #[cfg(feature = "faults")]
    pub(super) fn permit_loads(&mut self, permit: &LoadPermit) {
        self.permit = Some(Arc::clone(permit));
    }

    /// Switches every block each time before it computes.
    #[cfg(feature = "faults")]
    pub(super) fn switch_always(&mut self) {
        self.always = true;
    }
}

impl Blocks {
    /// The blocks of a model's layers; empty where no layer has forms with their weights inside.
    fn new(manifest: &Manifest, forms: &mut FormTable, loads: Loads) -> Option<Self> {
        let order = StageOrders::of(manifest).ok()?.at(WorkStage::Prefill);
        let layers = manifest.layers.len() as u32;
        let a_block = layers.div_ceil(BLOCKS_MAX as u32).max(1);
        let mut switched = |layer: u32, group| {
            let layer = Some(layer);
            let place = Place { layer, group };
            let prepared = forms.at(place)?;
            let [form] = prepared.forms.as_slice() else {
                return None;
            };
            holds_weights(manifest, place, form).then_some((place, form.rung))
        };
        let mut blocks = Vec::new();
        for first in (0..layers).step_by(a_block as usize) {
            let layers = first..layers.min(first + a_block);
            let all = layers.clone().flat_map(|layer| {
                let groups = [Group::Qkv, Group::Ffn];
                groups.map(|group| (layer, group))
            });
            let places: Vec<_> = all
                .filter_map(|(layer, group)| switched(layer, group))
                .collect();
            if places.is_empty() {
                return None;
            }
            blocks.push(Block {
                layers,
                places,
                holding: Holding::Graph(Graph::Long),
                failures: 0,
            });
        }
        Some(Self {
            first: order.first().into(),
            blocks,
            wanted: VecDeque::new(),
            loads,
            plan: None,
            pace: BlockPace::default(),
        })
    }

    /// The block of a launch.
    fn of(&self, launch: Launch) -> Option<usize> {
        let layer = launch.layer?;
        let mut blocks = self.blocks.iter();
        blocks.position(|block| block.layers.contains(&layer))
    }

    /// Begins what is due when tokens come to a block.
    fn arrive(&mut self, at: usize, tokens: usize, coming: Coming, forms: &mut FormTable) {
        // The way back is for times without anything to do.
        self.wanted.retain(|(_, graph)| *graph == Graph::Short);
        match coming {
            Coming::Prompt { tokens_left } => self.go_on(at, tokens.max(1), tokens_left),
            Coming::Answers => {
                self.plan = None;
                for block in 0..self.blocks.len() {
                    self.want(block, Graph::Short);
                }
            }
        }
        self.begin_next(forms);
    }

    /// Wants the loads that are due before a block computes a chunk of a prompt.
    fn go_on(&mut self, at: usize, chunk_tokens: usize, left: usize) {
        let is_known = self.plan.as_ref().is_some_and(|plan| left <= plan.left);
        if at == 0 && !is_known {
            self.plan = Some(self.plan(chunk_tokens, left));
        }
        let Some(plan) = &mut self.plan else { return };
        plan.left = left;
        let chunk = (plan.first_left - left.min(plan.first_left)) / plan.chunk_tokens;
        let step = chunk * self.blocks.len() + at;
        let due = plan.loads.iter().filter(|load| load.step <= step);
        for block in due.map(|load| load.block).collect::<Vec<_>>() {
            self.want(block, Graph::Short);
        }
    }

    fn plan(&self, chunk_tokens: usize, left: usize) -> PromptPlan {
        let blocks = self.blocks.iter();
        let blocks: Vec<_> = blocks
            .map(|block| self.pace.of(block.layers.len(), chunk_tokens))
            .collect();
        let chunks = left.div_ceil(chunk_tokens);
        let planned = chunks.min(PLANNED_CHUNKS);
        let before = (chunks - planned) * blocks.len();
        let loads = plan(&blocks, planned).into_iter();
        let later = |load: Load| Load {
            step: load.step + before,
            ..load
        };
        PromptPlan {
            loads: loads.map(later).collect(),
            chunk_tokens,
            first_left: left,
            left,
        }
    }

    /// Has a block loaded in a graph as soon as it can be, unless it has that or is to have it.
    fn want(&mut self, at: usize, graph: Graph) {
        let block = &self.blocks[at];
        let has = match &block.holding {
            Holding::Graph(held) | Holding::Loading(held) => *held == graph,
            Holding::Nothing(_) => false,
        };
        let given_up = graph == Graph::Short && block.failures >= FAILURES_MAX;
        if !has && !given_up && !self.wanted.contains(&(at, graph)) {
            self.wanted.push_back((at, graph));
        }
    }

    /// Begins the next load, unless one is under way: drops what the block has.
    fn begin_next(&mut self, forms: &mut FormTable) {
        if self.loads.is_busy() {
            return;
        }
        let Some((at, graph)) = self.wanted.pop_front() else {
            return;
        };
        let block = &mut self.blocks[at];
        for (place, _) in &block.places {
            if let Some(prepared) = forms.at(*place) {
                prepared.forms.clear();
            }
        }
        block.holding = Holding::Loading(graph);
        self.loads.begin(at, graph, block.places.clone());
    }

    /// Waits until a block has a graph.
    fn settle(
        &mut self,
        at: usize,
        forms: &mut FormTable,
        cancel: Option<&AtomicBool>,
    ) -> Result<(), ExecError> {
        while let Some(loaded) = self.loads.finished()? {
            self.take_in(loaded, forms);
        }
        loop {
            match &mut self.blocks[at].holding {
                Holding::Graph(_) => return Ok(()),
                Holding::Loading(_) => {}
                Holding::Nothing(error) => {
                    if let Some(error) = error.take() {
                        return Err(error);
                    }
                    self.wanted.retain(|wanted| *wanted != (at, Graph::Long));
                    self.wanted.push_front((at, Graph::Long));
                    self.begin_next(forms);
                }
            }
            self.wait(forms, cancel)?;
        }
    }

    /// Waits for the load that is under way, and begins the next one.
    fn wait(
        &mut self,
        forms: &mut FormTable,
        cancel: Option<&AtomicBool>,
    ) -> Result<(), ExecError> {
        let loaded = self.loads.wait(cancel)?;
        self.take_in(loaded, forms);
        Ok(())
    }

    fn take_in(&mut self, loaded: Loaded, forms: &mut FormTable) {
        let Loaded {
            block: at,
            graph,
            outcome,
            took,
        } = loaded;
        let block = &mut self.blocks[at];
        match (outcome, graph) {
            (Ok(ready), _) => {
                for (place, form) in ready {
                    if let Some(prepared) = forms.at(place) {
                        prepared.forms = vec![form];
                    }
                }
                block.holding = Holding::Graph(graph);
                self.pace.loaded(block.layers.len(), took);
            }
            (Err(_), Graph::Short) => {
                block.failures += 1;
                block.holding = Holding::Nothing(None);
                self.wanted.push_front((at, Graph::Long));
            }
            (Err(error), Graph::Long) => block.holding = Holding::Nothing(Some(error)),
        }
        self.begin_next(forms);
    }

    /// Notes the forms that a block now has, and the tokens that it computes.
    fn note(&mut self, at: usize, tokens: usize) {
        let block = &self.blocks[at];
        if let Holding::Graph(graph) = block.holding {
            self.pace.begins(at, graph, (block.layers.len(), tokens));
        }
    }

    /// Begins the load of a long graph, where a block has the short one; says whether there may be more to do.
    fn go_back(&mut self, forms: &mut FormTable) -> bool {
        self.plan = None;
        self.pace.rests();
        self.wanted.clear();
        while let Ok(Some(loaded)) = self.loads.finished() {
            self.take_in(loaded, forms);
        }
        for at in 0..self.blocks.len() {
            if matches!(self.blocks[at].holding, Holding::Graph(Graph::Short)) {
                self.want(at, Graph::Long);
            }
        }
        let is_more = !self.wanted.is_empty() || self.loads.is_busy();
        self.begin_next(forms);
        self.wanted.clear();
        is_more
    }

    /// Has the block behind this one switched, whatever it has.
    fn switch_next(&mut self, at: usize, forms: &mut FormTable) {
        let next = (at + 1) % self.blocks.len();
        if let Holding::Graph(graph) = self.blocks[next].holding {
            self.want(next, graph.other());
            self.begin_next(forms);
        }
    }
}

/// Whether a form is one of OpenVINO's with its weights inside.
fn holds_weights(manifest: &Manifest, place: Place, form: &Form) -> bool {
    let kernel = place_kernel(manifest, place);
    let variant = kernel
        .ok()
        .and_then(|it| it.variants.get(form.rung.variant));
    let is_constant = variant.is_some_and(|variant| variant.binding == Binding::Constant);
    is_constant && PluginForm::of(&*form.runner).is_some() && form.shape.chunk().is_none()
}
