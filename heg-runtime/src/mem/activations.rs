//! Activation rows of one lane: allocated once, reused through the layers.
//!
//! `hidden` is double: a layer reads one half and writes the other, since a kernel may not write what it
//! reads. Keys and values of a batch come here when they are not contiguous in one cache.

use std::sync::Arc;

use heg_openvino::{ElementType, HostBuffer, Memory, Tensor};

use crate::error::{RuntimeError, openvino};

/// A matrix of rows in a buffer of its own.
pub(crate) struct Rows {
    buffer: Arc<HostBuffer>,
    width: usize,
    element: ElementType,
}

impl Rows {
    pub(crate) fn new(
        rows: usize,
        width: usize,
        element: ElementType,
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

    /// The first `count` elements as a vector.
    pub(crate) fn vector(&self, count: usize) -> Result<Tensor, RuntimeError> {
        let memory: Arc<dyn Memory> = self.buffer.clone();
        Tensor::new(memory, 0, self.element, &[count]).map_err(openvino("view of a vector"))
    }

    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.buffer.len() / self.row_bytes().max(1)
    }

    pub(crate) fn element(&self) -> ElementType {
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

/// All rows of a lane.
pub(crate) struct Activations {
    /// Residual stream, double.
    pub(crate) hidden: [Rows; 2],
    pub(crate) query: Rows,
    pub(crate) attended: Rows,
    /// New keys and values of a batch of several sequences.
    pub(crate) keys: Rows,
    pub(crate) values: Rows,
    /// Rows that the head reads.
    pub(crate) last: Rows,
    pub(crate) logits: Rows,
    pub(crate) position: Rows,
}

/// Widths of the rows of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widths {
    pub(crate) hidden: usize,
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) vocab: usize,
}

impl Activations {
    /// Buffers for `rows` tokens a call, of which the head takes `head_rows`.
    pub(crate) fn new(
        rows: usize,
        head_rows: usize,
        widths: Widths,
        element: ElementType,
    ) -> Result<Self, RuntimeError> {
        let activations = |width| Rows::new(rows, width, element);
        Ok(Self {
            hidden: [activations(widths.hidden)?, activations(widths.hidden)?],
            query: activations(widths.query)?,
            attended: activations(widths.query)?,
            keys: activations(widths.key)?,
            values: activations(widths.key)?,
            last: Rows::new(head_rows, widths.hidden, element)?,
            logits: Rows::new(head_rows, widths.vocab, ElementType::F32)?,
            position: Rows::new(1, 1, ElementType::I64)?,
        })
    }
}
