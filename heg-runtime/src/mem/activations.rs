//! Activation rows: those that pass through the layers, and scratch rows of a single launch.

use std::sync::Arc;

use heg_openvino::{HostBuffer, Memory, Tensor, TensorType};

use super::program_rows::{ProgramRows, program_rows};
use crate::error::{RuntimeError, openvino};

/// A matrix of rows in a buffer of its own.
pub(crate) struct Rows {
    buffer: Arc<HostBuffer>,
    width: usize,
    element: TensorType,
}

impl Rows {
    pub(crate) fn new(
        rows: usize,
        width: usize,
        element: TensorType,
    ) -> Result<Self, RuntimeError> {
        let buffer = HostBuffer::new(rows * width * element.bytes())
            .map_err(openvino("activation buffer"))?;
        Ok(Self {
            buffer: Arc::new(buffer),
            width,
            element,
        })
    }

    /// Rows [first, first + count) as a tensor.
    pub(crate) fn view(&self, first: usize, count: usize) -> Result<Tensor, RuntimeError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(
            memory,
            first * self.row_bytes(),
            self.element,
            &[count, self.width],
        )
        .map_err(openvino("view of activation rows"))
    }

    /// Rows [first, first + count) for a CPU program.
    pub(crate) fn for_program(
        &self,
        first: usize,
        count: usize,
    ) -> Result<ProgramRows<'_>, RuntimeError> {
        let rows = program_rows(&*self.buffer, 0, (first, count), self.row_bytes());
        rows.ok_or(RuntimeError::Batch {
            asked: first + count,
            rows: self.count(),
        })
    }

    /// The first `count` elements as a vector.
    pub(crate) fn vector(&self, count: usize) -> Result<Tensor, RuntimeError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(memory, 0, self.element, &[count]).map_err(openvino("view of a vector"))
    }

    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.buffer.len() / self.row_bytes().max(1)
    }

    pub(crate) fn element(&self) -> TensorType {
        self.element
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.width * self.element.bytes()
    }

    pub(crate) fn write_row(&self, row: usize, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.buffer
            .write(row * self.row_bytes(), bytes)
            .map_err(openvino("write of an activation row"))
    }

    pub(crate) fn read_row(&self, row: usize, into: &mut [u8]) -> Result<(), RuntimeError> {
        let start = row * self.row_bytes();
        self.buffer
            .read(start..start + self.row_bytes(), into)
            .map_err(openvino("read of an activation row"))
    }

    /// Writes a row of a narrower matrix that uses this buffer from its start.
    pub(crate) fn write_packed(&self, row: usize, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.buffer
            .write(row * bytes.len(), bytes)
            .map_err(openvino("write of a rotary row"))
    }

    /// Reads bytes of a narrower matrix that uses this buffer from its start, from byte `first` on.
    pub(crate) fn read_packed(&self, first: usize, into: &mut [u8]) -> Result<(), RuntimeError> {
        self.buffer
            .read(first..first + into.len(), into)
            .map_err(openvino("read of activation rows"))
    }

    /// The first `count` rows of a narrower matrix that uses this buffer from its start.
    pub(crate) fn view_packed(&self, count: usize, width: usize) -> Result<Tensor, RuntimeError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(memory, 0, self.element, &[count, width])
            .map_err(openvino("view of rotary rows"))
    }

    /// Reads rows [0, count) of f32.
    pub(crate) fn read_f32(&self, into: &mut [f32]) -> Result<(), RuntimeError> {
        self.buffer
            .read_f32(0, into)
            .map_err(openvino("read of logits"))
    }
}

/// Rows that pass through the layers, of one prompt or of a batch.
///
/// A prompt keeps its rows from its first kernel to its last, so that preempting it copies nothing (DESIGN §3).
/// Memory is committed as rows are first written.
pub(crate) struct Activations {
    /// Residual stream: layer l reads half l mod 2 and writes the other.
    pub(crate) hidden: [Rows; 2],
    pub(crate) query: Rows,
    pub(crate) attended: Rows,
}

/// Scratch rows of a lane, used within one launch only.
pub(crate) struct Scratch {
    /// New keys and values of a batch of several sequences.
    pub(crate) keys: Rows,
    pub(crate) values: Rows,
    /// Rows that the head reads.
    pub(crate) last: Rows,
    pub(crate) logits: Rows,
    pub(crate) position: Rows,
}

/// Widths of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widths {
    pub(crate) hidden: usize,
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) vocab: usize,
    /// Element type of everything but keys, values, logits and positions.
    pub(crate) element: TensorType,
    /// Element type of keys and values.
    pub(crate) kv: TensorType,
}

impl Activations {
    /// Buffers for `rows` tokens.
    pub(crate) fn new(rows: usize, widths: Widths) -> Result<Self, RuntimeError> {
        let activations = |width| Rows::new(rows, width, widths.element);
        Ok(Self {
            hidden: [activations(widths.hidden)?, activations(widths.hidden)?],
            query: activations(widths.query)?,
            attended: activations(widths.query)?,
        })
    }

    /// Memory that all rows take.
    pub(crate) fn bytes(&self) -> usize {
        let [even, odd] = &self.hidden;
        let all = [even, odd, &self.query, &self.attended];
        all.iter().map(|rows| rows.buffer.len()).sum()
    }
}

impl Scratch {
    /// Buffers for calls of `rows` tokens, of which the head takes `head_rows`.
    pub(crate) fn new(rows: usize, head_rows: usize, widths: Widths) -> Result<Self, RuntimeError> {
        Ok(Self {
            keys: Rows::new(rows, widths.key, widths.kv)?,
            values: Rows::new(rows, widths.key, widths.kv)?,
            last: Rows::new(head_rows, widths.hidden, widths.element)?,
            logits: Rows::new(head_rows, widths.vocab, TensorType::F32)?,
            position: Rows::new(1, 1, TensorType::I64)?,
        })
    }
}
