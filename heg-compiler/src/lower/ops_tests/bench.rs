//! Lowers one operator, runs it and compares the result with a reference.
//!
//! References to sections and literals are resolved here as the runtime resolves them, over one buffer that holds the
//! literals first and then every section of the weights.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use heg_artifacts::manifest::{Binding, ElementType, Port, Role, Rows, ShapeClass};
use heg_openvino::{Core, HostBuffer, InferRequest, Memory, OpenvinoError, Tensor, find_libraries};
use heg_spec::{Group, WeightForm};

use super::stored::{Section, Stored, decode, encode};
use crate::graph::{Op, Param, ParamKind, WeightSource};
use crate::heg::{BodyOp, KernelBody, Operand};
use crate::lower::{Literals, Lowering, WeightsFirst, lower};
use crate::reference::evaluate;
use heg_quant::MappedWeight;

/// An operator with its weights and ports.
pub(super) struct OneOp {
    pub(super) op: Op,
    /// Operands first, then the operator's other inputs.
    pub(super) inputs: Vec<Port>,
    /// Number of inputs that are operands.
    pub(super) operands: usize,
    /// Elements per output row.
    pub(super) width: u32,
    /// Values of each parameter, in order.
    pub(super) weights: Vec<Vec<f32>>,
}

/// One run: the values of each input, and the number of tokens.
pub(super) struct Call {
    pub(super) tokens: usize,
    pub(super) inputs: Vec<Vec<f32>>,
}

/// The form of a variant under test.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) binding: Binding,
    pub(super) activations: ElementType,
    pub(super) kv_cache: Option<ElementType>,
    pub(super) weights: WeightForm,
    pub(super) weights_first: WeightsFirst,
    pub(super) takes_trees: bool,
}

/// Token counts of the tests: decode, and chunks that are not multiples of anything.
pub(super) const TOKENS: [usize; 3] = [1, 5, 33];

/// Largest difference, relative to the largest reference value: f32 differs by summation order only.
const TOLERANCE_F32: f64 = 1e-5;
/// Like [`TOLERANCE_F32`]: inputs are exact in f16, results are rounded at most once per step.
const TOLERANCE_F16: f64 = 1e-2;

impl OneOp {
    /// Checks all activation types and bindings; `weights` matters to matrices only.
    pub(super) fn check(
        &self,
        test: &str,
        weights: WeightForm,
        calls: &[Call],
        reference: impl Fn(&Call, &[Vec<f32>]) -> Vec<f64>,
    ) {
        self.check_evaluator(test, weights, calls, &reference);
        let Some(core) = core(test) else { return };
        let bindings: &[Binding] = match self.op.params().is_empty() {
            true => &[Binding::Constant],
            false => &[Binding::Constant, Binding::Input],
        };
        for binding in bindings {
            let elements = [
                (ElementType::F32, None),
                (ElementType::F32, Some(ElementType::Bf16)),
                (ElementType::F16, None),
            ];
            for (activations, kv_cache) in elements {
                for weights_first in self.orders(*binding) {
                    let form = Form {
                        binding: *binding,
                        activations,
                        kv_cache,
                        weights,
                        weights_first: *weights_first,
                        takes_trees: false,
                    };
                    self.check_form(core, test, &form, calls, &reference);
                }
            }
        }
    }

    /// Checks buckets whose tokens may be a tree, with calls that have the tree as one more input.
    pub(super) fn check_trees(
        &self,
        test: &str,
        calls: &[Call],
        reference: impl Fn(&Call, &[Vec<f32>]) -> Vec<f64>,
    ) {
        let Some(core) = core(test) else { return };
        for activations in [ElementType::F32, ElementType::F16] {
            let form = Form {
                binding: Binding::Constant,
                activations,
                kv_cache: None,
                weights: WeightForm::F32,
                weights_first: WeightsFirst::NONE,
                takes_trees: true,
            };
            self.check_form(core, test, &form, calls, &reference);
        }
    }

    /// The orders to test: products may have weights first if weights are inputs.
    fn orders(&self, binding: Binding) -> &'static [WeightsFirst] {
        match (&self.op, binding) {
            (Op::Linear { .. }, Binding::Input) => &[WeightsFirst::NONE, WeightsFirst::ALL],
            _ => &[WeightsFirst::NONE],
        }
    }

    fn check_form(
        &self,
        core: &Core,
        test: &str,
        form: &Form,
        calls: &[Call],
        reference: &impl Fn(&Call, &[Vec<f32>]) -> Vec<f64>,
    ) {
        let stored = self.stored(form.weights);
        let values: Vec<Vec<f32>> = stored.iter().map(Stored::values).collect();
        let mut requests: BTreeMap<ShapeClass, InferRequest> = BTreeMap::new();
        for call in calls {
            let call = call.rounded(&self.inputs, form);
            let expected = reference(&call, &values);
            let shapes = self.shapes(&call).into_iter();
            for shape in shapes.filter(|shape| !form.takes_trees || shape.bucket().is_some()) {
                let request = requests
                    .entry(shape)
                    .or_insert_with(|| self.request(core, form, shape, &stored));
                let found = self.run(request, &call, form);
                let name = format!("{test}: {} tokens, {shape:?}, {form:?}", call.tokens);
                assert_close(&found, &expected, tolerance(form.activations), &name);
            }
        }
    }

    /// The shape classes that fit a call without padding; buckets where there is a context.
    fn shapes(&self, call: &Call) -> Vec<ShapeClass> {
        let tokens = call.tokens as u32;
        let mut shapes = vec![ShapeClass::Dynamic, ShapeClass::Static { tokens }];
        let mut inputs = self.inputs.iter().zip(&call.inputs);
        if let Some((port, values)) = inputs.find(|(port, _)| port.rows == Rows::Context) {
            let context = values.len() as u32 / port.width;
            shapes.push(ShapeClass::Bucket { tokens, context });
        }
        shapes
    }

    /// Checks the compiler's own evaluator against the same reference.
    fn check_evaluator(
        &self,
        test: &str,
        form: WeightForm,
        calls: &[Call],
        reference: &impl Fn(&Call, &[Vec<f32>]) -> Vec<f64>,
    ) {
        let stored = self.stored(form);
        let values: Vec<Vec<f32>> = stored.iter().map(Stored::values).collect();
        let weights: Vec<MappedWeight> = stored.iter().map(Stored::weight).collect();
        for call in calls {
            let inputs: Vec<heg_quant::ValueRows> = self
                .inputs
                .iter()
                .zip(&call.inputs)
                .map(|(port, values)| heg_quant::ValueRows {
                    width: port.width as usize,
                    values: values.clone(),
                })
                .collect();
            let found = evaluate(&self.body(), &inputs, &weights).unwrap();
            assert_eq!(found[0].width, self.width as usize);
            let found: Vec<f64> = found[0].values.iter().map(|x| f64::from(*x)).collect();
            let name = format!("{test}: {} tokens, evaluator, {form:?}", call.tokens);
            assert_close(&found, &reference(call, &values), TOLERANCE_F32, &name);
        }
    }

    fn body(&self) -> KernelBody {
        let output = Port {
            role: Role::Hidden,
            rows: Rows::Tokens,
            width: self.width,
        };
        KernelBody {
            name: "one".to_owned(),
            group: Group::Ffn,
            inputs: self.inputs.clone(),
            ops: vec![BodyOp {
                name: "y".to_owned(),
                op: self.op.clone(),
                operands: (0..self.operands).map(Operand::Input).collect(),
            }],
            outputs: vec![output],
            results: vec![Operand::Op(0)],
        }
    }

    fn stored(&self, form: WeightForm) -> Vec<Stored> {
        let params = self.op.params();
        assert_eq!(params.len(), self.weights.len());
        let each = params.into_iter().zip(&self.weights);
        each.map(|(param, values)| Stored::new(param, values, form))
            .collect()
    }

    /// Makes an infer request with all weights set.
    fn request(
        &self,
        core: &Core,
        form: &Form,
        shape: ShapeClass,
        stored: &[Stored],
    ) -> InferRequest {
        let lowering = Lowering {
            shape,
            binding: form.binding,
            activations: form.activations,
            kv_cache: form.kv_cache,
            takes_trees: form.takes_trees,
            weights: form.weights,
            weights_first: form.weights_first,
        };
        let mut pool = Literals::default();
        let ir = lower(&self.body(), lowering, &mut pool);
        let sections: Vec<&Section> = stored.iter().flat_map(|s| &s.sections).collect();
        let (memory, offsets) = place(&pool.into_bytes(), &sections);
        let ir = resolve(&ir, &offsets);
        let all = Tensor::new(
            memory.clone(),
            0,
            heg_openvino::TensorType::U8,
            &[memory.len()],
        );
        let model = core.read_model(ir.as_bytes(), Some(&all.unwrap())).unwrap();
        let mut request = core
            .compile(&model, "CPU", &EXACT)
            .unwrap()
            .request()
            .unwrap();
        if form.binding == Binding::Input {
            for (index, (section, offset)) in sections.iter().zip(&offsets).enumerate() {
                let element = openvino_element(section.element);
                let tensor = Tensor::new(memory.clone(), *offset, element, &section.shape);
                request
                    .bind_input(self.inputs.len() + index, tensor.unwrap())
                    .unwrap();
            }
        }
        request
    }

    fn run(&self, request: &mut InferRequest, call: &Call, form: &Form) -> Vec<f64> {
        // Every token of a call has a column of the tree, which is no port of the kernel.
        let tree = Port {
            role: Role::Query,
            rows: Rows::Tokens,
            width: call.tokens as u32,
        };
        let ports = self.inputs.iter().chain(form.takes_trees.then_some(&tree));
        for (index, (port, values)) in ports.zip(&call.inputs).enumerate() {
            let element = port_element(port.role, form);
            let width = port.width as usize;
            assert_eq!(values.len() % width, 0);
            let shape = match port.rows {
                Rows::One => vec![1],
                Rows::Tokens | Rows::Context => vec![values.len() / width, width],
            };
            let memory = buffer(&encode(values, element));
            let tensor = Tensor::new(memory, 0, openvino_element(element), &shape);
            request.bind_input(index, tensor.unwrap()).unwrap();
        }
        let activations = form.activations;
        let shape = [call.tokens, self.width as usize];
        let bytes = shape[0] * shape[1] * activations.bytes() as usize;
        let memory = buffer(&vec![0xff; bytes]);
        let tensor = Tensor::new(memory.clone(), 0, openvino_element(activations), &shape);
        request.bind_output(0, tensor.unwrap()).unwrap();
        request.infer().unwrap();
        assert_eq!(request.output(0).unwrap().shape(), shape);
        let mut out = vec![0; bytes];
        memory.read(0..bytes, &mut out).unwrap();
        decode(&out, activations)
    }
}

impl Call {
    /// Rounds the call's activations to the port's element type.
    fn rounded(&self, ports: &[Port], form: &Form) -> Self {
        let round = |(port, values): (&Port, &Vec<f32>)| {
            let element = port_element(port.role, form);
            let bytes = encode(values, element);
            decode(&bytes, element).iter().map(|x| *x as f32).collect()
        };
        let rest = self.inputs.iter().skip(ports.len()).cloned();
        let inputs = ports.iter().zip(&self.inputs).map(round);
        Self {
            tokens: self.tokens,
            inputs: inputs.chain(rest).collect(),
        }
    }
}

/// A port with rows of tokens.
pub(super) fn tokens(role: Role, width: u32) -> Port {
    Port {
        role,
        rows: Rows::Tokens,
        width,
    }
}

/// A weight of a test.
pub(super) fn param(kind: ParamKind, shape: &[u32]) -> Param {
    Param {
        slot: format!("y.{kind:?}").to_lowercase() + &format!("{}", shape.len()),
        source: WeightSource {
            name: String::new(),
            first_row: None,
        },
        kind,
        shape: shape.to_owned(),
    }
}

/// Numbers between −1 and 1 that are the same on every machine; each `seed` gives another sequence.
pub(super) fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The core of this test process. If OpenVINO is not installed, the test is reported as skipped.
fn core(test: &str) -> Option<&'static Core> {
    static CORE: OnceLock<Result<Core, OpenvinoError>> = OnceLock::new();
    match CORE.get_or_init(|| Core::load_from(&find_libraries()?)) {
        Ok(core) => Some(core),
        Err(OpenvinoError::LibraryNotFound { .. }) => {
            let text = format!("skipped: {test}: OpenVINO not found (run: cargo xtask setup)");
            assert!(std::env::var_os("HEG_REQUIRE_OPENVINO").is_none(), "{text}");
            // Not `println!`, which the test harness would swallow.
            let _ = writeln!(std::io::stderr(), "{text}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Puts the literals at 0, then the sections; returns the sections' offsets.
fn place(literals: &[u8], sections: &[&Section]) -> (Arc<HostBuffer>, Vec<usize>) {
    let mut bytes = literals.to_owned();
    let mut offsets = Vec::new();
    for section in sections {
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        offsets.push(bytes.len());
        bytes.extend_from_slice(&section.bytes);
    }
    bytes.resize(bytes.len().max(8), 0);
    (buffer(&bytes), offsets)
}

fn resolve(ir: &str, offsets: &[usize]) -> String {
    let mut parts = ir.split("offset=\"@");
    let mut resolved = parts.next().unwrap().to_owned();
    for part in parts {
        let (reference, rest) = part.split_once('"').unwrap();
        let offset = match reference.strip_prefix("c+") {
            Some(literal) => literal.parse().unwrap(),
            None => offsets[reference.parse::<usize>().unwrap()],
        };
        resolved += &format!("offset=\"{offset}\"{rest}");
    }
    resolved
}

fn buffer(bytes: &[u8]) -> Arc<HostBuffer> {
    let buffer = HostBuffer::new(bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    Arc::new(buffer)
}

fn openvino_element(element: ElementType) -> heg_openvino::TensorType {
    match element {
        ElementType::I4 => heg_openvino::TensorType::I4,
        ElementType::U4 => heg_openvino::TensorType::U4,
        ElementType::I8 => heg_openvino::TensorType::I8,
        ElementType::F16 => heg_openvino::TensorType::F16,
        ElementType::Bf16 => heg_openvino::TensorType::Bf16,
        ElementType::F32 => heg_openvino::TensorType::F32,
        ElementType::I64 => heg_openvino::TensorType::I64,
    }
}

/// The element type that a bundle's manifest states, written independently of the lowering.
fn port_element(role: Role, form: &Form) -> ElementType {
    match role {
        Role::Key | Role::Value => form.kv_cache.unwrap_or(form.activations),
        Role::Position => ElementType::I64,
        Role::Cos | Role::Sin => ElementType::F32,
        _ => form.activations,
    }
}

fn tolerance(activations: ElementType) -> f64 {
    match activations {
        ElementType::F16 => TOLERANCE_F16,
        _ => TOLERANCE_F32,
    }
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected
        .iter()
        .fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs() / largest;
        assert!(
            off <= tolerance,
            "{name}: element {at} is {found}, expected {expected} (largest {largest})"
        );
    }
}

/// Exact arithmetic, and one thread, because tests run side by side.
const EXACT: [(&str, &str); 4] = [
    ("INFERENCE_PRECISION_HINT", "f32"),
    ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
    ("NUM_STREAMS", "1"),
    ("INFERENCE_NUM_THREADS", "1"),
];
