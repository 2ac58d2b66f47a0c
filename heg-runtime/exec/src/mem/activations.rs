//! Activation rows: those that pass through the layers, and scratch rows of a single launch.

use std::sync::Arc;

use heg_openvino::{HostBuffer, Memory, Tensor, TensorType};

use super::home::MemoryHome;
use super::program_rows::{ProgramRows, program_rows};
use crate::error::{ExecError, openvino};

/// A matrix in a buffer of its own, row after row.
pub struct RowBuffer {
    buffer: Arc<HostBuffer>,
    width: usize,
    element: TensorType,
}

impl RowBuffer {
    /// Allocates a buffer for `rows` rows.
    pub fn new(
        rows: usize,
        width: usize,
        element: TensorType,
        home: &MemoryHome,
    ) -> Result<Self, ExecError> {
        let buffer = home
            .buffer(rows * width * element.bytes())
            .map_err(openvino("activation buffer"))?;
        Ok(Self {
            buffer: Arc::new(buffer),
            width,
            element,
        })
    }

    /// Returns rows [first, first + count) as a tensor.
    pub fn view(&self, first: usize, count: usize) -> Result<Tensor, ExecError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(
            memory,
            first * self.row_bytes(),
            self.element,
            &[count, self.width],
        )
        .map_err(openvino("view of activation rows"))
    }

    /// Returns rows [first, first + count) for a CPU program.
    pub fn for_program(&self, first: usize, count: usize) -> Result<ProgramRows<'_>, ExecError> {
        let rows = program_rows(&*self.buffer, 0, (first, count), self.row_bytes());
        rows.ok_or(ExecError::Batch {
            asked: first + count,
            rows: self.count(),
        })
    }

    /// Returns the first `count` elements as a vector.
    pub fn vector(&self, count: usize) -> Result<Tensor, ExecError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(memory, 0, self.element, &[count]).map_err(openvino("view of a vector"))
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.buffer.len() / self.row_bytes().max(1)
    }

    /// Element type of the rows.
    pub fn element(&self) -> TensorType {
        self.element
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.width * self.element.bytes()
    }

    /// Writes one row, or several from it on.
    pub fn write_row(&self, row: usize, bytes: &[u8]) -> Result<(), ExecError> {
        self.buffer
            .write(row * self.row_bytes(), bytes)
            .map_err(openvino("write of an activation row"))
    }

    /// Writes one row of f32.
    pub(crate) fn write_row_f32(&self, row: usize, from: &[f32]) -> Result<(), ExecError> {
        self.buffer
            .write_f32(row * self.row_bytes(), from)
            .map_err(openvino("write of an activation row"))
    }

    /// Reads rows from `first` on: as many as `into` has room for.
    pub(crate) fn read_rows(&self, first: usize, into: &mut [u8]) -> Result<(), ExecError> {
        let start = first * self.row_bytes();
        self.buffer
            .read(start..start + into.len(), into)
            .map_err(openvino("read of activation rows"))
    }

    /// Writes one element.
    pub(crate) fn write_element(
        &self,
        row: usize,
        column: usize,
        bytes: &[u8],
    ) -> Result<(), ExecError> {
        let at = row * self.row_bytes() + column * self.element.bytes();
        let written = self.buffer.write(at, bytes);
        written.map_err(openvino("write of an activation"))
    }

    /// Reads one element.
    pub(crate) fn read_element(
        &self,
        row: usize,
        column: usize,
        into: &mut [u8],
    ) -> Result<(), ExecError> {
        let at = row * self.row_bytes() + column * self.element.bytes();
        let read = self.buffer.read(at..at + into.len(), into);
        read.map_err(openvino("read of an activation"))
    }

    /// Elements of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Reads one row.
    pub fn read_row(&self, row: usize, into: &mut [u8]) -> Result<(), ExecError> {
        let start = row * self.row_bytes();
        self.buffer
            .read(start..start + self.row_bytes(), into)
            .map_err(openvino("read of an activation row"))
    }

    /// Writes a row of a narrower matrix that uses this buffer from its start.
    pub fn write_packed(&self, row: usize, bytes: &[u8]) -> Result<(), ExecError> {
        self.buffer
            .write(row * bytes.len(), bytes)
            .map_err(openvino("write of a rotary row"))
    }

    /// Reads bytes of a narrower matrix that uses this buffer from its start, from byte `first` on.
    pub fn read_packed(&self, first: usize, into: &mut [u8]) -> Result<(), ExecError> {
        self.buffer
            .read(first..first + into.len(), into)
            .map_err(openvino("read of activation rows"))
    }

    /// Returns the first `count` rows of a narrower matrix that uses this buffer from its start.
    pub fn view_packed(&self, count: usize, width: usize) -> Result<Tensor, ExecError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(memory, 0, self.element, &[count, width])
            .map_err(openvino("view of rotary rows"))
    }

    /// Reads rows [0, count) of f32.
    pub fn read_f32(&self, into: &mut [f32]) -> Result<(), ExecError> {
        self.buffer
            .read_f32(0, into)
            .map_err(openvino("read of logits"))
    }
}

/// Rows that pass through the layers, of one prompt or of a batch.
///
/// A prompt keeps its rows from its first kernel to its last, so that preempting it copies nothing (DESIGN §3).
/// Host memory is committed as rows are first written, memory that a device knows at once.
pub struct ActivationRows {
    /// Residual stream: layer l reads half l mod 2 and writes the other.
    pub hidden: [RowBuffer; 2],
    /// Queries, which attention reads.
    pub query: RowBuffer,
    /// The outputs of attention.
    pub attended: RowBuffer,
}

/// Scratch rows of a lane, used within one launch only.
pub struct Scratch {
    /// New keys of a batch of several sequences.
    pub keys: RowBuffer,
    /// New values of a batch of several sequences.
    pub values: RowBuffer,
    /// Rows that the head reads.
    pub last: RowBuffer,
    /// The outputs of the head.
    pub logits: RowBuffer,
    /// The position of the first token of an attention call.
    pub position: RowBuffer,
}

/// Widths of rows.
#[derive(Debug, Clone, Copy)]
pub struct Widths {
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Elements of all queries of a token.
    pub query: usize,
    /// Elements of all keys of a token.
    pub key: usize,
    /// Elements of a row that the head gives: tokens of the vocabulary, or those of a vector.
    pub head: usize,
    /// Element type of all rows except keys, values, logits and positions.
    pub element: TensorType,
    /// Element type of keys and values.
    pub kv: TensorType,
}

impl ActivationRows {
    /// Allocates buffers for `rows` tokens.
    pub fn new(rows: usize, widths: Widths, home: &MemoryHome) -> Result<Self, ExecError> {
        let activations = |width| RowBuffer::new(rows, width, widths.element, home);
        Ok(Self {
            hidden: [activations(widths.hidden)?, activations(widths.hidden)?],
            query: activations(widths.query)?,
            attended: activations(widths.query)?,
        })
    }

    /// Copies what attention and FFN of a layer read of rows [first, first + count) of other activations, to the first
    /// rows of these.
    pub fn take(
        &self,
        from: &Self,
        layer: usize,
        (first, count): (usize, usize),
    ) -> Result<(), ExecError> {
        let half = layer % 2;
        let both = [
            (&from.hidden[half], &self.hidden[half]),
            (&from.query, &self.query),
        ];
        for (from, to) in both {
            let mut bytes = vec![0; count * from.row_bytes()];
            from.read_rows(first, &mut bytes)?;
            to.write_row(0, &bytes)?;
        }
        Ok(())
    }

    /// Memory of all rows, in bytes.
    pub fn bytes(&self) -> usize {
        let [even, odd] = &self.hidden;
        let all = [even, odd, &self.query, &self.attended];
        all.iter().map(|rows| rows.buffer.len()).sum()
    }
}

impl Scratch {
    /// Allocates buffers for calls of `rows` tokens, with `head_rows` rows for the head.
    pub fn new(
        rows: usize,
        head_rows: usize,
        widths: Widths,
        home: &MemoryHome,
    ) -> Result<Self, ExecError> {
        let buffer = |rows, width, element| RowBuffer::new(rows, width, element, home);
        Ok(Self {
            keys: buffer(rows, widths.key, widths.kv)?,
            values: buffer(rows, widths.key, widths.kv)?,
            last: buffer(head_rows, widths.hidden, widths.element)?,
            logits: buffer(head_rows, widths.head, TensorType::F32)?,
            position: buffer(1, 1, TensorType::I64)?,
        })
    }
}
