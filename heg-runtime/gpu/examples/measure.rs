//! Measures the modules of this machine's GPU: `measure [rounds]` prints a line of JSON for each figure, its median, with
//! the device and what its probe found first. `HEG_VK_DRIVER` names a device.
//!
//! A product's time is that of a launch that rounds rows and multiplies them with one of many matrices, which are larger
//! than any cache together, less the time of the rounding alone. Bits are the tests' subject, not this program's.

use std::time::{Duration, Instant};

use heg_artifacts::manifest::{ElementType, Kernel, Parameter, Port, Role, Rows, Work};
use heg_artifacts::program::{
    Attention, Buffer, BufferId, BufferPlace, ParameterId, Part, Program, RowForm, Step,
    scratch_width,
};
use heg_gpu::{
    CallState, GpuCache, GpuCall, GpuDevice, GpuError, GpuOptions, GpuOrder, GpuProgram, GpuRegion,
    GpuRows, GpuTask, GpuWeight, RowState, StateLimits,
};
use heg_spec::{Activations, Group, GroupColumns, Seeded, Sight};

fn main() -> Result<(), GpuError> {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let device = GpuDevice::open(&GpuOptions::from_environment())?;
    let (info, probe) = (device.info(), device.probe());
    let wrong = probe.wrong.iter().filter(|(_, wrong)| *wrong > 0);
    let wrong: Vec<_> = wrong
        .map(|(name, wrong)| format!("{name}: {wrong}"))
        .collect();
    let wrong = wrong.join(", ");
    println!(
        r#"{{"step":"device","name":"{}","driver":"{}","kind":"{}","vulkan":"{}","sharing":"{:?}","fidelity":"{:?}","fma":"{}","division":"{}","root":"{}","dots":{},"wrong":"{wrong}"}}"#,
        info.name,
        info.driver,
        info.kind,
        info.vulkan,
        device.sharing(),
        device.fidelity(),
        probe.arithmetic.fma,
        probe.arithmetic.division,
        probe.arithmetic.root,
        probe.arithmetic.dots,
    );
    let bench = Bench {
        device,
        rounds: rounds.unwrap_or(11),
        is_small: info.kind == "software",
    };
    bench.submissions()?;
    bench.copies()?;
    bench.products()?;
    bench.attention()
}

/// A device that is measured.
struct Bench {
    device: GpuDevice,
    /// Times that each figure is measured; the median is printed.
    rounds: usize,
    /// Whether shapes are small ones, to rehearse on a device in software.
    is_small: bool,
}

/// The longest time of a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time before a measurement. Chosen: a device at rest had a third of its clock rate for tens of milliseconds.
const WARM_UP: Duration = Duration::from_millis(150);

impl Bench {
    /// Seconds of an order, the median of some runs behind others that have a device raise its clocks.
    fn seconds(&self, order: &GpuOrder) -> Result<f64, GpuError> {
        let begin = Instant::now();
        while begin.elapsed() < WARM_UP {
            order.run(PATIENCE)?;
        }
        let mut times = Vec::with_capacity(self.rounds);
        for _ in 0..self.rounds {
            let begin = Instant::now();
            order.run(PATIENCE)?;
            times.push(begin.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times.get(self.rounds / 2).copied().unwrap_or(f64::NAN))
    }

    fn noise(&self, bytes: u64) -> Result<GpuRegion, GpuError> {
        let region = self.device.memory(bytes)?;
        let mut seeded = Seeded::new(1);
        let words = (0..1 << 21).flat_map(|_| seeded.bits().to_le_bytes());
        let part: Vec<u8> = words.collect();
        for first in (0..bytes).step_by(part.len()) {
            let size = (bytes - first).min(part.len() as u64) as usize;
            region.write(first, part.get(..size).unwrap_or_default())?;
        }
        Ok(region)
    }

    /// Rows of f32 between 1 and 2.
    fn floats(&self, rows: u32, width: u32) -> Result<GpuRows, GpuError> {
        let region = self.device.memory(4 * u64::from(rows) * u64::from(width))?;
        let mut seeded = Seeded::new(2);
        let count = u64::from(rows) * u64::from(width);
        let value = |_| (0x3f80_0000 | (seeded.bits() as u32 >> 9)).to_le_bytes();
        region.write(0, &(0..count).flat_map(value).collect::<Vec<u8>>())?;
        Ok(GpuRows {
            region,
            stride: width,
        })
    }

    fn state(&self, rows: u32, position: u32) -> Result<CallState, GpuError> {
        let limits = StateLimits {
            rows,
            layers: 1,
            cache_row_bytes: CACHE_ROW_BYTES,
            positions: position + rows,
            tokens: 1,
        };
        let state = CallState::new(&self.device, limits)?;
        let cache = GpuCache::new(&self.device, 1, position + rows, CACHE_ROW_BYTES)?;
        let row = |row| RowState {
            position: position + row,
            cache: Some(&cache),
            cache_row: position + row,
            ..RowState::default()
        };
        state.set(&(0..rows).map(row).collect::<Vec<_>>())?;
        Ok(state)
    }

    /// Times of submissions: of one launch, and of each of many launches in one.
    fn submissions(&self) -> Result<(), GpuError> {
        let (one, many) = (self.copy(1, 64, 1)?, self.copy(1, 64, 200)?);
        let (one, many) = (self.seconds(&one)?, self.seconds(&many)?);
        println!(
            r#"{{"step":"submissions","one_us":{:.2},"launch_us":{:.3}}}"#,
            one * 1e6,
            (many - one) / 199.0 * 1e6
        );
        Ok(())
    }

    /// Launches that copy rows of f32.
    fn copy(&self, rows: u32, width: u32, count: usize) -> Result<GpuOrder, GpuError> {
        let subject = Subject::copy(width, RowForm::Plain);
        let calls = Calls {
            rows,
            inputs: vec![Some(self.floats(rows, width)?)],
            outputs: vec![Some(self.floats(rows, width)?)],
            matrices: Vec::new(),
        };
        self.order(&subject, &calls, count, 0)
    }

    /// The rate of a plain copy: bytes that are read and bytes that are written.
    fn copies(&self) -> Result<(), GpuError> {
        let (rows, width) = if self.is_small {
            (64, 4096)
        } else {
            (4096, 16384)
        };
        let seconds = self.seconds(&self.copy(rows, width, 4)?)? / 4.0;
        let bytes = 8.0 * f64::from(rows) * f64::from(width);
        println!(
            r#"{{"step":"copy","bytes":{bytes},"gb_per_s":{:.1}}}"#,
            bytes / seconds / 1e9
        );
        Ok(())
    }

    fn products(&self) -> Result<(), GpuError> {
        let shapes: &[(u32, u32)] = match self.is_small {
            true => &[(256, 256)],
            false => &[
                (2048, 2048),
                (2048, 8192),
                (8192, 2048),
                (4096, 4096),
                (4096, 14336),
                (14336, 4096),
                (2048, 128_256),
            ],
        };
        for element in [ElementType::I8, ElementType::U4] {
            for (columns, outputs) in shapes {
                for rows in [1, 2, 8, 16, 32, 64, 256] {
                    self.product(element, rows, *columns, *outputs)?;
                }
            }
        }
        Ok(())
    }

    fn product(
        &self,
        element: ElementType,
        rows: u32,
        columns: u32,
        outputs: u32,
    ) -> Result<(), GpuError> {
        let elements = u64::from(columns) * u64::from(outputs);
        let bytes = element.bytes_of(elements).unwrap_or(0);
        // Twice as large as the largest cache, together.
        let matrices = if self.is_small {
            2
        } else {
            (200 << 20) / bytes + 1
        };
        let count = usize::try_from(matrices).unwrap_or(1).clamp(2, 64);
        let subject = Subject::product(element, columns, outputs);
        let affine = 8 * elements / 32 + 8 * u64::from(outputs);
        let (scales, values) = (self.noise(affine)?, self.noise(bytes)?);
        let mut all = vec![values];
        for _ in 1..count {
            all.push(self.device.memory(bytes)?);
        }
        let matrix = |values: GpuRegion| GpuWeight {
            values,
            scales: Some(scales.clone()),
            centres: Some(scales.clone()),
        };
        let calls = Calls {
            rows,
            inputs: vec![Some(self.floats(rows, columns)?)],
            outputs: vec![Some(self.floats(rows, outputs)?)],
            matrices: all.into_iter().map(matrix).collect(),
        };
        let product = self.order(&subject, &calls, count, 0)?;
        let rounding = Subject::copy(columns, RowForm::Operand);
        let rounding = self.order(&rounding, &calls, count, 0)?;
        let (both, rounding) = (self.seconds(&product)?, self.seconds(&rounding)?);
        let seconds = (both - rounding) / count as f64;
        println!(
            r#"{{"step":"product","element":"{element:?}","rows":{rows},"columns":{columns},"outputs":{outputs},"us":{:.2},"with_rounding_us":{:.2},"gb_per_s":{:.1},"tera_mul_adds_per_s":{:.2}}}"#,
            seconds * 1e6,
            both / count as f64 * 1e6,
            bytes as f64 / seconds / 1e9,
            elements as f64 * f64::from(rows) / seconds / 1e12,
        );
        Ok(())
    }

    fn attention(&self) -> Result<(), GpuError> {
        let contexts: &[u32] = match self.is_small {
            true => &[300],
            false => &[64, 512, 2048, 8192, 32768],
        };
        for (context, rows) in contexts
            .iter()
            .flat_map(|it| [(*it, 1), (*it, 8), (*it, 256)])
        {
            if rows > 8 && context > 8192 {
                continue;
            }
            let (heads, kv_heads, head_dim) = (32, KV_HEADS, HEAD_DIM);
            let subject = Subject::attention(heads, kv_heads, head_dim);
            let query = self.floats(rows, heads * head_dim)?;
            let calls = Calls {
                rows,
                inputs: vec![Some(query), None, None, None],
                outputs: vec![Some(self.floats(rows, heads * head_dim)?)],
                matrices: Vec::new(),
            };
            let seconds = self.seconds(&self.order(&subject, &calls, 10, context)?)? / 10.0;
            println!(
                r#"{{"step":"attention","rows":{rows},"context":{context},"us":{:.2}}}"#,
                seconds * 1e6
            );
        }
        Ok(())
    }

    /// An order of some calls, each with the next matrix.
    fn order(
        &self,
        subject: &Subject,
        calls: &Calls,
        count: usize,
        position: u32,
    ) -> Result<GpuOrder, GpuError> {
        let Subject { kernel, program } = subject;
        let (kv, activations) = (ElementType::Bf16, Activations::I8);
        let ready = GpuProgram::new(program.clone(), kernel, kv, activations)?;
        let elements = u64::from(ready.scratch_elements().max(1));
        let scratch = self.device.memory(4 * elements * u64::from(calls.rows))?;
        let state = self.state(calls.rows, position)?;
        let has_weights = !kernel.parameters.is_empty();
        let weights: Vec<Vec<GpuWeight>> = (0..count)
            .map(|call| {
                let matrix = calls.matrices.get(call % calls.matrices.len().max(1));
                matrix
                    .filter(|_| has_weights)
                    .cloned()
                    .into_iter()
                    .collect()
            })
            .collect();
        let outputs = calls.outputs.get(..kernel.outputs.len());
        let of_call = |weights| GpuCall {
            rows: calls.rows,
            layer: 0,
            weights,
            inputs: &calls.inputs,
            outputs: outputs.unwrap_or_default(),
            scratch: &scratch,
            state: &state,
        };
        let weights = weights.iter().map(Vec::as_slice);
        let tasks: Vec<GpuTask<'_>> = weights
            .map(|weights| GpuTask::Program(&ready, of_call(weights)))
            .collect();
        GpuOrder::record(&self.device, &[&tasks])
    }
}

/// Heads of keys and values, and their elements, as models of 1B have them.
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 64;

/// Bytes of a row of keys in bf16.
const CACHE_ROW_BYTES: u64 = 2 * (KV_HEADS * HEAD_DIM) as u64;

/// Memory of calls.
struct Calls {
    rows: u32,
    inputs: Vec<Option<GpuRows>>,
    outputs: Vec<Option<GpuRows>>,
    matrices: Vec<GpuWeight>,
}

/// A kernel with one program.
struct Subject {
    kernel: Kernel,
    program: Program,
}

impl Subject {
    fn new(inputs: Vec<Port>, outputs: Vec<Port>, parameters: Vec<Parameter>) -> Self {
        Self {
            kernel: Kernel {
                name: "measured".to_owned(),
                group: Group::Ffn,
                ops: Vec::new(),
                inputs,
                outputs,
                parameters,
                work: Work::default(),
                variants: Vec::new(),
            },
            program: Program {
                buffers: Vec::new(),
                steps: Vec::new(),
            },
        }
    }

    fn buffer(&mut self, width: u32, form: RowForm, place: BufferPlace) -> BufferId {
        let buffers = &mut self.program.buffers;
        buffers.push(Buffer {
            name: format!("b{}", buffers.len()),
            width,
            form,
            place,
        });
        BufferId(buffers.len() as u32 - 1)
    }

    /// A copy of rows to an output, or to scratch memory as operands and on to an output of one element.
    fn copy(width: u32, form: RowForm) -> Self {
        let output = tokens(Role::Hidden, width);
        let outputs = if form == RowForm::Plain {
            vec![output]
        } else {
            Vec::new()
        };
        let mut subject = Self::new(vec![tokens(Role::Attended, width)], outputs, Vec::new());
        let x = subject.buffer(width, RowForm::Plain, BufferPlace::Input(0));
        let place = match form {
            RowForm::Plain => BufferPlace::Output(0),
            RowForm::Operand => BufferPlace::Scratch { first: 0 },
        };
        let out = subject.buffer(width, form, place);
        subject.program.steps.push(Step::Copy { x, out });
        subject
    }

    fn product(element: ElementType, columns: u32, outputs: u32) -> Self {
        let parameter = Parameter {
            name: "matrix".to_owned(),
            element,
            shape: vec![outputs, columns],
            group_columns: element.is_grouped().then_some(GroupColumns::SMALLEST),
            centred: element == ElementType::U4,
        };
        let ports = [
            tokens(Role::Attended, columns),
            tokens(Role::Hidden, outputs),
        ];
        let [input, output] = ports;
        let mut subject = Self::new(vec![input], vec![output], vec![parameter]);
        let x = subject.buffer(columns, RowForm::Plain, BufferPlace::Input(0));
        let first = BufferPlace::Scratch { first: 0 };
        let operand = subject.buffer(columns, RowForm::Operand, first);
        let out = subject.buffer(outputs, RowForm::Plain, BufferPlace::Output(0));
        subject.program.steps = vec![
            Step::Copy { x, out: operand },
            Step::Product {
                x: operand,
                parts: vec![Part {
                    weight: ParameterId(0),
                    bias: None,
                    residual: None,
                    out,
                }],
            },
        ];
        debug_assert!(subject.program.scratch_elements() >= scratch_width(columns));
        subject
    }

    fn attention(heads: u32, kv_heads: u32, head_dim: u32) -> Self {
        let cache = |role| Port {
            role,
            rows: Rows::Context,
            width: kv_heads * head_dim,
        };
        let position = Port {
            role: Role::Position,
            rows: Rows::One,
            width: 1,
        };
        let query = tokens(Role::Query, heads * head_dim);
        let inputs = vec![query, cache(Role::Key), cache(Role::Value), position];
        let output = tokens(Role::Attended, heads * head_dim);
        let mut subject = Self::new(inputs, vec![output], Vec::new());
        let width = heads * head_dim;
        let out = subject.buffer(width, RowForm::Plain, BufferPlace::Output(0));
        subject.program.steps.push(Step::Attention {
            attributes: Attention {
                heads,
                kv_heads,
                head_dim,
                scale: 0.125,
                window: None,
                softcap: None,
                sight: Sight::Causal,
            },
            out,
        });
        subject
    }
}

/// A port with a row for each token.
fn tokens(role: Role, width: u32) -> Port {
    Port {
        role,
        rows: Rows::Tokens,
        width,
    }
}
