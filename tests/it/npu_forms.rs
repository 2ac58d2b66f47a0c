//! Every IR for the NPU, run on the CPU device, gives the same results as the constant-bound f32 form.
//!
//! All kernels of all families in all weight forms. Real rows are compared; the padding of a chunk and the rows
//! of the cache after the visible ones hold large finite garbage, as they do after an earlier request. Attention that
//! takes trees is also given random ones, and compared token by token with the reference over the token's branch alone.

use std::sync::{Arc, OnceLock};

use heg_artifacts::manifest::{
    Binding, ElementType, Kernel, KernelUse, KnownAnswers, Port, Role, Rows, ShapeClass, Variant,
    Weight,
};
use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{Core, HostBuffer, InferRequest, Memory, Tensor, find_libraries};
use heg_spec::{DeviceClass, Group, GroupColumns, WeightForm};
use heg_tests::{FAMILIES, Seeded, Workbench, fixture, openvino_or_skip};

/// Returns the largest absolute difference of an output, relative to the largest absolute value of the
/// reference.
fn tolerance(activations: ElementType) -> f32 {
    match activations {
        ElementType::F16 => 1e-2,
        _ => 1e-4,
    }
}

/// A call, with its number of new tokens and the cache row of the first one.
#[derive(Debug, Clone, Copy)]
struct Call {
    tokens: usize,
    position: usize,
}

/// A bundle in memory, and the core on which its IRs run.
struct Bench {
    core: &'static Core,
    bundle: Bundle,
    memory: Arc<HostBuffer>,
}

impl Bench {
    fn new(workbench: &Workbench, family: &str, form: WeightForm) -> Self {
        let folder = fixture(&format!("golden/{family}"));
        let (path, _) = workbench
            .compile(&folder, family, |spec| {
                spec.weights = form;
                spec.chunk_tokens = CHUNKS.to_vec();
                spec.mha_context_tokens = BUCKETS.to_vec();
            })
            .unwrap();
        Self {
            core: core(),
            memory: buffer(&std::fs::read(&path).unwrap()),
            bundle: Bundle::open(&path).unwrap(),
        }
    }

    /// Checks all NPU variants of all kernels; returns their number.
    fn check(&self, name: &str) -> usize {
        let manifest = self.bundle.manifest();
        let layers = manifest.layers.iter();
        let uses: Vec<&KernelUse> = layers
            .flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn])
            .chain([&manifest.head])
            .collect();
        let mut checked = 0;
        for (index, kernel) in manifest.kernels.iter().enumerate() {
            let used = uses.iter().find(|used| used.kernel.0 as usize == index);
            checked += self.check_kernel(name, kernel, used.unwrap());
        }
        checked
    }

    fn check_kernel(&self, name: &str, kernel: &Kernel, used: &KernelUse) -> usize {
        let of = |device| kernel.variants.iter().filter(move |v| v.device == device);
        let reference = of(DeviceClass::Cpu).next().unwrap();
        assert_eq!(reference.binding, Binding::Constant);
        assert_eq!(reference.activations, ElementType::F32);
        let mut expecting = self.request(kernel, reference, used);
        for variant in of(DeviceClass::Npu) {
            let mut request = self.request(kernel, variant, used);
            assert!(request.model().inputs().iter().all(|port| port.is_static()));
            for call in calls(variant.shape) {
                let expected = self.run(&mut expecting, kernel, reference, used, call);
                let found = self.run(&mut request, kernel, variant, used, call);
                let name = format!("{name}, {}, {:?}, {call:?}", kernel.name, variant.shape);
                for ((port, found), expected) in kernel.outputs.iter().zip(&found).zip(&expected) {
                    let name = format!("{name}, {:?}", port.role);
                    assert_close(found, expected, tolerance(variant.activations), &name);
                }
            }
            assert_eq!(variant.takes_trees, kernel.group == Group::Mha);
            if variant.takes_trees {
                let [mut found, mut expected] = [&mut request, &mut expecting];
                self.check_trees(
                    name,
                    kernel,
                    [variant, reference],
                    [&mut found, &mut expected],
                );
            }
        }
        of(DeviceClass::Npu).count()
    }

    /// Checks attention over random trees against the reference, which has each token alone behind its branch.
    fn check_trees(
        &self,
        name: &str,
        kernel: &Kernel,
        [variant, reference]: [&Variant; 2],
        [request, expecting]: [&mut InferRequest; 2],
    ) {
        let [chunk, bucket] = [variant.shape.chunk(), variant.shape.bucket()];
        let [chunk, bucket] = [chunk, bucket].map(|size| size.unwrap() as usize);
        let mut seeded = Seeded::new(chunk as u64 * 1000 + bucket as u64);
        for position in [0, (bucket - chunk) / 2, bucket - chunk] {
            let tokens = 1 + seeded.below(chunk);
            let follows: Vec<usize> = (1..tokens)
                .map(|token| match seeded.below(3) {
                    0 => seeded.below(token),
                    _ => token - 1,
                })
                .collect();
            let call = Call { tokens, position };
            let name = format!("{name}, {:?}, {call:?}, tree {follows:?}", variant.shape);
            let mut inputs = self.inputs(kernel, variant, None, call);
            inputs.push(tree(&follows, chunk));
            let found = infer(request, kernel, variant, &inputs, chunk);
            let whole = self.inputs(kernel, reference, None, call);
            let width = kernel.outputs[0].width as usize;
            for (token, found) in found[0].chunks(width).take(tokens).enumerate() {
                let branch = branch(&follows, token);
                let rows = (0..position).chain(branch.iter().map(|token| position + token));
                let inputs: Vec<Input> = kernel
                    .inputs
                    .iter()
                    .zip(&whole)
                    .map(|(port, (values, _))| match port.rows {
                        Rows::One => (vec![(position + branch.len() - 1) as f32], vec![1]),
                        Rows::Tokens => rows_of(values, port, [token]),
                        Rows::Context => rows_of(values, port, rows.clone()),
                    })
                    .collect();
                let expected = infer(expecting, kernel, reference, &inputs, 1);
                let name = format!("{name}, token {token}");
                assert_close(found, &expected[0], tolerance(variant.activations), &name);
            }
        }
    }

    fn request(&self, kernel: &Kernel, variant: &Variant, used: &KernelUse) -> InferRequest {
        let sections = self.sections(used);
        let offsets: Vec<u64> = sections.iter().map(|id| self.offset(*id)).collect();
        let ir = self.bundle.section(variant.ir).unwrap();
        let literals = self.offset(self.bundle.manifest().literals);
        let ir = resolve(std::str::from_utf8(ir).unwrap(), &offsets, literals);
        let all = [self.memory.len()];
        let all = Tensor::new(self.memory.clone(), 0, heg_openvino::TensorType::U8, &all);
        let model = self.core.read_model(ir.as_bytes(), Some(&all.unwrap()));
        let compiled = self.core.compile(&model.unwrap(), "CPU", &EXACT).unwrap();
        let mut request = compiled.request().unwrap();
        if variant.binding == Binding::Input {
            for (index, (element, shape)) in self.weights(used).iter().enumerate() {
                let (memory, offset) = (self.memory.clone(), offsets[index] as usize);
                let tensor = Tensor::new(memory, offset, openvino(*element), shape);
                let port = kernel.inputs.len() + index;
                request.bind_input(port, tensor.unwrap()).unwrap();
            }
        }
        request
    }

    /// Returns the sections that a use passes to an IR, in its order.
    fn sections(&self, used: &KernelUse) -> Vec<SectionId> {
        let weights = &self.bundle.manifest().weights;
        let used = used.weights.iter().map(|id| &weights[id.0 as usize]);
        used.flat_map(Weight::sections).collect()
    }

    /// Returns the element type and shape of each of [`Self::sections`] as an input.
    fn weights(&self, used: &KernelUse) -> Vec<(ElementType, Vec<usize>)> {
        let weights = &self.bundle.manifest().weights;
        let used = used.weights.iter().map(|id| &weights[id.0 as usize]);
        used.flat_map(|weight| {
            let shape: Vec<usize> = weight.shape.iter().map(|dim| *dim as usize).collect();
            let rows = shape[0];
            let tensors = match weight.group_columns {
                None => {
                    let of_rows = (ElementType::F32, vec![1, rows]);
                    vec![(weight.element, shape), of_rows.clone(), of_rows]
                }
                Some(group) => {
                    let group = group.count() as usize;
                    let groups = shape[1] / group;
                    vec![
                        (weight.element, vec![rows, groups, group]),
                        (ElementType::F16, vec![rows, groups, 1]),
                        (ElementType::F16, vec![rows, groups]),
                    ]
                }
            };
            tensors.into_iter().take(weight.sections().count())
        })
        .collect()
    }

    fn offset(&self, id: SectionId) -> u64 {
        self.bundle.section_range(id).unwrap().start
    }

    /// Runs a variant; returns the real rows of its outputs.
    fn run(
        &self,
        request: &mut InferRequest,
        kernel: &Kernel,
        variant: &Variant,
        used: &KernelUse,
        call: Call,
    ) -> Vec<Vec<f32>> {
        let rows = variant.shape.chunk().map_or(call.tokens, |c| c as usize);
        let mut inputs = self.inputs(kernel, variant, Some(used), call);
        if variant.takes_trees {
            let chain: Vec<usize> = (0..rows - 1).collect();
            inputs.push(tree(&chain, rows));
        }
        let mut outputs = infer(request, kernel, variant, &inputs, rows);
        for (port, values) in kernel.outputs.iter().zip(&mut outputs) {
            values.truncate(call.tokens * port.width as usize);
        }
        outputs
    }

    /// The inputs of a call, in port order.
    fn inputs(
        &self,
        kernel: &Kernel,
        variant: &Variant,
        used: Option<&KernelUse>,
        call: Call,
    ) -> Vec<Input> {
        let ports = kernel.inputs.iter();
        let input = |port| self.input(port, variant.shape, used, call);
        ports.map(input).collect()
    }

    /// Values and shape of an input: the real values, then garbage up to the fixed size.
    fn input(&self, port: &Port, shape: ShapeClass, used: Option<&KernelUse>, call: Call) -> Input {
        let asked = KnownAnswers {
            seed: 3,
            rows: call.tokens as u32,
            context: (call.position + call.tokens) as u32,
        };
        let width = port.width as usize;
        let fixed = match port.rows {
            Rows::One => return (vec![call.position as f32], vec![1]),
            Rows::Tokens => shape.chunk(),
            Rows::Context => shape.bucket(),
        };
        let rows = fixed.unwrap_or(asked.rows_of(port.rows)) as usize;
        let mut values = match port.role {
            Role::Cos | Role::Sin => self.rotary(port, used.unwrap(), call),
            _ => asked.values(port),
        };
        values.resize_with(rows * width, garbage());
        (values, vec![rows, width])
    }

    /// Rows of the use's rotary table from the position on.
    fn rotary(&self, port: &Port, used: &KernelUse, call: Call) -> Vec<f32> {
        let table = &self.bundle.manifest().rope[used.rope.unwrap().0 as usize];
        let section = if port.role == Role::Cos {
            table.cos
        } else {
            table.sin
        };
        let (words, _) = self.bundle.section(section).unwrap().as_chunks::<4>();
        let width = port.width as usize;
        let rows = call.position * width..(call.position + call.tokens) * width;
        words[rows]
            .iter()
            .map(|word| f32::from_le_bytes(*word))
            .collect()
    }
}

/// Values of an input, and their shape.
type Input = (Vec<f32>, Vec<usize>);

/// Runs a request; returns all rows of its outputs.
fn infer(
    request: &mut InferRequest,
    kernel: &Kernel,
    variant: &Variant,
    inputs: &[Input],
    rows: usize,
) -> Vec<Vec<f32>> {
    // A tree is in the type of the activations, as queries are.
    let roles = kernel.inputs.iter().map(|port| port.role);
    let roles = roles.chain([Role::Query]);
    for (index, ((values, shape), role)) in inputs.iter().zip(roles).enumerate() {
        let element = variant.port_element(role);
        let memory = buffer(&encode(values, element));
        let tensor = Tensor::new(memory, 0, openvino(element), shape).unwrap();
        request.bind_input(index, tensor).unwrap();
    }
    let outputs: Vec<Arc<HostBuffer>> = kernel
        .outputs
        .iter()
        .enumerate()
        .map(|(index, port)| {
            let element = variant.port_element(port.role);
            let shape = [rows, port.width as usize];
            // NaN wherever nothing is written.
            let memory = buffer(&vec![0xff; shape[0] * shape[1] * element.bytes() as usize]);
            let tensor = Tensor::new(memory.clone(), 0, openvino(element), &shape);
            request.bind_output(index, tensor.unwrap()).unwrap();
            memory
        })
        .collect();
    request.infer().unwrap();
    let ports = kernel.outputs.iter().zip(&outputs);
    ports
        .map(|(port, memory)| decode(memory, variant.port_element(port.role)))
        .collect()
}

/// Rows of an input, as one.
fn rows_of(values: &[f32], port: &Port, rows: impl IntoIterator<Item = usize>) -> Input {
    let width = port.width as usize;
    let rows: Vec<&[f32]> = rows
        .into_iter()
        .map(|row| &values[row * width..(row + 1) * width])
        .collect();
    (rows.concat(), vec![rows.len(), width])
}

/// The tokens that lead to one, itself the last; `follows` has for each but the first the earlier one before it.
fn branch(follows: &[usize], token: usize) -> Vec<usize> {
    let before = |token: &usize| token.checked_sub(1).map(|at| follows[at]);
    let mut branch: Vec<usize> = std::iter::successors(Some(token), before).collect();
    branch.reverse();
    branch
}

/// The input that says which token sees which, with padding that sees only itself.
fn tree(follows: &[usize], chunk: usize) -> Input {
    let row = |token: usize| {
        let seen = match token <= follows.len() {
            true => branch(follows, token),
            false => vec![token],
        };
        (0..chunk).map(move |other| f32::from(u8::from(seen.contains(&other))))
    };
    ((0..chunk).flat_map(row).collect(), vec![chunk, chunk])
}

/// Full and padded calls; for attention at both ends of the bucket, and with padded tokens that reach past it.
fn calls(shape: ShapeClass) -> Vec<Call> {
    let chunk = shape.chunk().unwrap() as usize;
    let positions = match shape.bucket() {
        None => vec![5],
        Some(rows) => vec![0, (rows as usize - chunk) / 2, rows as usize - chunk],
    };
    let calls = positions.iter().flat_map(|position| {
        [chunk, chunk - 3, 1].map(|tokens| Call {
            tokens,
            position: *position,
        })
    });
    let last = shape.bucket().map(|rows| Call {
        tokens: 2,
        position: rows as usize - 2,
    });
    calls.chain(last).collect()
}

/// Garbage values: finite in f16, as are the scores from them, and far above all real values; of either sign.
fn garbage() -> impl FnMut() -> f32 {
    let mut count = 0_u32;
    move || {
        count = count.wrapping_add(1);
        let size = 500.0 + (count % 7) as f32 * 50.0;
        if count.is_multiple_of(3) { -size } else { size }
    }
}

fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| Core::load_from(&find_libraries().unwrap()).unwrap())
}

/// Replaces references by true offsets, as the runtime does.
fn resolve(ir: &str, sections: &[u64], literals: u64) -> String {
    let mut parts = ir.split("offset=\"@");
    let mut resolved = parts.next().unwrap().to_owned();
    for part in parts {
        let (reference, rest) = part.split_once('"').unwrap();
        let offset = match reference.strip_prefix("c+") {
            Some(within) => literals + within.parse::<u64>().unwrap(),
            None => sections[reference.parse::<usize>().unwrap()],
        };
        resolved += &format!("offset=\"{offset}\"{rest}");
    }
    resolved
}

fn encode(values: &[f32], element: ElementType) -> Vec<u8> {
    let each = values.iter();
    match element {
        ElementType::F32 => each.flat_map(|x| x.to_le_bytes()).collect(),
        ElementType::F16 => each
            .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
            .collect(),
        ElementType::Bf16 => each
            .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
            .collect(),
        ElementType::I64 => each.flat_map(|x| (*x as i64).to_le_bytes()).collect(),
        ElementType::I8 => each.map(|x| *x as i8 as u8).collect(),
        // No port has this type.
        ElementType::I4 | ElementType::U4 => Vec::new(),
    }
}

fn decode(memory: &HostBuffer, element: ElementType) -> Vec<f32> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0..bytes.len(), &mut bytes).unwrap();
    let number = |bytes: &[u8]| match element {
        ElementType::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        ElementType::Bf16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => f32::from_le_bytes(bytes.try_into().unwrap()),
    };
    let each = bytes.chunks_exact(element.bytes() as usize);
    each.map(number).collect()
}

fn openvino(element: ElementType) -> heg_openvino::TensorType {
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

fn buffer(bytes: &[u8]) -> Arc<HostBuffer> {
    let buffer = HostBuffer::new(bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    Arc::new(buffer)
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    assert!(largest > 0.0, "{name}: the reference is zero");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs() / largest;
        assert!(
            off <= tolerance,
            "{name}: element {at} is {found}, expected {expected} (largest {largest})"
        );
    }
}

fn check_family(family: &str) {
    if !openvino_or_skip(family) {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let group = GroupColumns::SMALLEST;
    let four_bits = |symmetric| WeightForm::W4A16 { group, symmetric };
    for form in [
        WeightForm::F32,
        WeightForm::F16,
        WeightForm::W8A16,
        four_bits(false),
        four_bits(true),
    ] {
        let bench = Bench::new(&workbench, family, form);
        let manifest = bench.bundle.manifest();
        let wide = manifest.model.weights == WeightForm::F32;
        let activations = if wide {
            ElementType::F32
        } else {
            ElementType::F16
        };
        let npu = manifest.kernels.iter().flat_map(|kernel| &kernel.variants);
        let mut npu = npu.filter(|variant| variant.device == DeviceClass::Npu);
        assert!(npu.all(|variant| variant.activations == activations));
        let each = |kernel: &Kernel| match kernel.group {
            Group::Mha => CHUNKS.len() * BUCKETS.len(),
            _ => CHUNKS.len(),
        };
        let expected: usize = manifest.kernels.iter().map(each).sum();
        assert_eq!(
            bench.check(&format!("{family}, {form:?}")),
            expected,
            "{family}"
        );
    }
}

macro_rules! families {
    ($($family:ident),+) => {
        $(#[test]
        fn $family() {
            check_family(stringify!($family));
        })+

        #[test]
        fn every_family_is_tested() {
            assert_eq!([$(stringify!($family)),+], FAMILIES);
        }
    };
}

families!(
    gemma2, gemma3, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3
);

/// Chunk sizes: one that is not a whole number of vectors, and one that is.
const CHUNKS: [u32; 2] = [5, 32];

/// Bucket sizes: not longer, and longer, than the sliding windows of the fixtures (32).
const BUCKETS: [u32; 2] = [32, 96];

/// Exact arithmetic, and one thread, for tests that run concurrently.
const EXACT: [(&str, &str); 4] = [
    ("INFERENCE_PRECISION_HINT", "f32"),
    ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
    ("NUM_STREAMS", "1"),
    ("INFERENCE_NUM_THREADS", "1"),
];
