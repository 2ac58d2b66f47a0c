//! The pieces on the device: each imported once, with a request for each run of rows, whose weights are bound once. Inputs
//! and results are in memory of this side alone, which a run that never ends may go on writing to.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, RowsPiece};
use heg_openvino::{CompiledModel, HostBuffer, InferRequest, Tensor};
use heg_spec::bug;

use super::rows::{NO_NUMBER, fault_of, from_piece, to_piece};
use super::spot_check::agrees;
use super::weight_rows::weight_rows;
use crate::backend::openvino::sections::Sections;
use crate::backend::openvino::watch::{DeviceWatch, RunError};
use crate::error::{ExecError, Loss, openvino};
use crate::mem::{MemoryHome, tensor_element};

/// The models, requests and memory of pieces.
pub(super) struct Bench {
    pub(super) bundle: Arc<Bundle>,
    pub(super) sections: Sections,
    pub(super) home: MemoryHome,
    pub(super) watch: Arc<DeviceWatch>,
    /// By the piece's place among the bundle's.
    pub(super) models: BTreeMap<usize, CompiledModel>,
    pub(super) requests: BTreeMap<RequestKey, InferRequest>,
    pub(super) slots: BTreeMap<(usize, usize), Slot>,
}

/// The rows that a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKey {
    piece: usize,
    weight: usize,
    first_row: usize,
    slot: usize,
}

/// Memory of one of the runs that a product has at a time: layers use the same, one after the other.
pub(super) struct Slot {
    input: Arc<HostBuffer>,
    output: Arc<HostBuffer>,
}

/// A run of a piece.
pub(super) struct PieceJob<'a> {
    /// Place of the piece among the bundle's.
    pub(super) piece: usize,
    /// Place of the weight among the bundle's.
    pub(super) weight: usize,
    pub(super) first_row: usize,
    /// Rows of the operand, in f32.
    pub(super) x: &'a [f32],
}

/// Rows of an operand as pieces of one size take them.
struct GivenRows<'a> {
    x: &'a [f32],
    size: usize,
    element: ElementType,
    bytes: Vec<u8>,
}

/// Results of runs that were under way at once.
pub(super) struct PieceResults {
    /// By job: rows of the tokens that are no padding.
    pub(super) y: Vec<Vec<f32>>,
    /// Time from the first start to the last end, as the host saw them.
    pub(super) busy: Duration,
}

/// Requests that are kept. Chosen: those of all matrices of a large model, over some sizes of calls.
const REQUESTS_MAX: usize = 4096;

impl Bench {
    /// Runs pieces side by side.
    ///
    /// # Errors
    ///
    /// [`ExecError::OpenVino`], [`ExecError::DeviceLost`] or [`ExecError::NoResult`]; nothing of it is under way any more
    /// then but on a device that does not end.
    pub(super) fn run(&mut self, jobs: &[PieceJob<'_>]) -> Result<PieceResults, ExecError> {
        let keys = jobs.iter().enumerate().map(|(slot, job)| RequestKey {
            piece: job.piece,
            weight: job.weight,
            first_row: job.first_row,
            slot,
        });
        let keys: Vec<RequestKey> = keys.collect();
        if self.requests.len() + keys.len() > REQUESTS_MAX {
            self.requests.clear();
        }
        let (mut given, mut are_new) = (None, Vec::with_capacity(keys.len()));
        for (key, job) in keys.iter().zip(jobs) {
            are_new.push(!self.requests.contains_key(key));
            self.prepare(*key, job, &mut given)?;
        }
        let begin = Instant::now();
        let ended = keys.iter().try_for_each(|key| self.start(*key));
        let ended = ended.and_then(|()| keys.iter().try_for_each(|key| self.wait(*key)));
        if let Err(error) = ended {
            for key in &keys {
                if let Some(request) = self.requests.get_mut(key) {
                    self.watch.end(request);
                }
            }
            return Err(error);
        }
        let busy = begin.elapsed();
        let mut y = Vec::with_capacity(keys.len());
        for ((key, job), is_new) in keys.iter().zip(jobs).zip(are_new) {
            let results = self.results(*key, job)?;
            if is_new {
                self.check(*key, job, &results)?;
            }
            y.push(results);
        }
        Ok(PieceResults { y, busy })
    }

    /// Looks at the first results of a request.
    fn check(&self, key: RequestKey, job: &PieceJob<'_>, y: &[f32]) -> Result<(), ExecError> {
        let piece = self.piece(key.piece)?;
        let (columns, rows) = (piece.form.columns as usize, piece.rows as usize);
        let weight = self.bundle.manifest().weights.get(key.weight);
        let weight = weight.ok_or_else(|| bug!("a piece has no weight"))?;
        let last = |values: &[f32], width: usize| values.len().saturating_sub(width);
        let x = job.x.get(last(job.x, columns)..).unwrap_or_default();
        let y = y.get(last(y, rows)..).unwrap_or_default();
        let bytes_of = |id| self.bundle.section_unverified(id).ok();
        match agrees(&bytes_of, weight, key.first_row, x, y) {
            true => Ok(()),
            false => {
                let why = format!("{rows} rows of `{}` are not what the CPU has", weight.name);
                Err(self.watch.lose(Loss::Wrong, why))
            }
        }
    }

    fn piece(&self, place: usize) -> Result<&RowsPiece, ExecError> {
        let piece = self.bundle.manifest().pieces.get(place);
        Ok(piece.ok_or_else(|| bug!("a run is of no piece of the bundle"))?)
    }

    /// Has a request ready whose inputs are a job's, and whose last results are marked as not written. `given` are the rows of
    /// the job before, which matrices of one product share.
    fn prepare<'a>(
        &mut self,
        key: RequestKey,
        job: &PieceJob<'a>,
        given: &mut Option<GivenRows<'a>>,
    ) -> Result<(), ExecError> {
        let piece = self.piece(key.piece)?;
        let (columns, size) = (piece.form.columns as usize, piece.tokens as usize);
        let element = piece.activations;
        let row_bytes = port_bytes(element, 1, piece.rows as usize);
        let is_same = |it: &GivenRows<'a>| {
            std::ptr::eq(it.x, job.x) && (it.size, it.element) == (size, element)
        };
        if !given.as_ref().is_some_and(is_same) {
            *given = Some(GivenRows {
                x: job.x,
                size,
                element,
                bytes: to_piece(element, job.x, columns, size),
            });
        }
        let bytes = given.as_ref().map_or(&[][..], |given| &given.bytes);
        let last = (job.x.len() / columns.max(1)).saturating_sub(1) * row_bytes;
        let Slot { input, output } = self.slot(key)?;
        let written = input.write(0, bytes);
        written.map_err(openvino("rows of a piece"))?;
        let marked = output.write(last, &vec![NO_NUMBER; row_bytes]);
        marked.map_err(openvino("results of a piece"))?;
        if !self.requests.contains_key(&key) {
            let made = self.request(key)?;
            self.requests.insert(key, made);
        }
        Ok(())
    }

    fn slot(&mut self, key: RequestKey) -> Result<&Slot, ExecError> {
        let piece = self.piece(key.piece)?;
        let (columns, rows) = (piece.form.columns as usize, piece.rows as usize);
        let (size, element) = (piece.tokens as usize, piece.activations);
        let home = &self.home;
        let buffer = |width| {
            let made = home.buffer(port_bytes(element, size, width));
            made.map(Arc::new).map_err(openvino("memory of a piece"))
        };
        match self.slots.entry((key.piece, key.slot)) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(free) => Ok(free.insert(Slot {
                input: buffer(columns)?,
                output: buffer(rows)?,
            })),
        }
    }

    /// A request with the rows and the memory of a key bound.
    fn request(&self, key: RequestKey) -> Result<InferRequest, ExecError> {
        let doing = || openvino("bind a piece of a product");
        let missing = || bug!("a piece has no model, memory or weight");
        let piece = self.piece(key.piece)?;
        let model = self.models.get(&key.piece).ok_or_else(missing)?;
        let slot = self.slots.get(&(key.piece, key.slot));
        let slot = slot.ok_or_else(missing)?;
        let weight = self.bundle.manifest().weights.get(key.weight);
        let weight = weight.ok_or_else(missing)?;
        let (size, element) = (piece.tokens as usize, tensor_element(piece.activations));
        let (rows, columns) = (piece.rows as usize, piece.form.columns as usize);
        let mut request = model.request().map_err(doing())?;
        let input = Tensor::new(slot.input.clone(), 0, element, &[size, columns]);
        let output = Tensor::new(slot.output.clone(), 0, element, &[size, rows]);
        let input = input.map_err(doing())?;
        request.bind_input(0, input).map_err(doing())?;
        let output = output.map_err(doing())?;
        request.bind_output(0, output).map_err(doing())?;
        let range: Range<usize> = key.first_row..key.first_row + rows;
        for (port, rows) in (1..).zip(weight_rows(weight, range)) {
            let (section, first_byte) = (rows.section, rows.first_byte);
            let sections = &self.sections;
            let tensor = sections.view(section, first_byte, rows.element, &rows.shape)?;
            request.bind_input(port, tensor).map_err(doing())?;
        }
        Ok(request)
    }

    fn start(&mut self, key: RequestKey) -> Result<(), ExecError> {
        let request = self.requests.get_mut(&key);
        let request = request.ok_or_else(|| bug!("a piece has no request"))?;
        let started = request.start();
        started.map_err(openvino("start a piece of a product"))
    }

    fn wait(&mut self, key: RequestKey) -> Result<(), ExecError> {
        let request = self.requests.get_mut(&key);
        let request = request.ok_or_else(|| bug!("a piece has no request"))?;
        self.watch.wait(request, None).map_err(|error| match error {
            RunError::Failed(error) => openvino("run a piece of a product")(error),
            RunError::Lost(error) => error,
        })
    }

    /// The rows that a run wrote, if they can be its.
    fn results(&self, key: RequestKey, job: &PieceJob<'_>) -> Result<Vec<f32>, ExecError> {
        let piece = self.piece(key.piece)?;
        let slot = self.slots.get(&(key.piece, key.slot));
        let slot = slot.ok_or_else(|| bug!("a piece has no memory"))?;
        let tokens = job.x.len() / (piece.form.columns as usize).max(1);
        let length = port_bytes(piece.activations, tokens, piece.rows as usize);
        let mut bytes = vec![0; length];
        let read = slot.output.read(0..length, &mut bytes);
        read.map_err(openvino("results of a piece"))?;
        let y = from_piece(piece.activations, &bytes);
        match fault_of(job.x, &y) {
            None => Ok(y),
            Some(found) => Err(ExecError::NoResult {
                device: self.watch.device().to_owned(),
                kernel: "a piece of a product".to_owned(),
                found,
            }),
        }
    }
}

fn port_bytes(element: ElementType, rows: usize, width: usize) -> usize {
    rows.saturating_mul(width)
        .saturating_mul(element.bytes() as usize)
}
