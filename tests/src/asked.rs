//! Asks a bundle's variants the bundle's question, on OpenVINO's CPU device, in exact arithmetic or not.
//!
//! The file is copied into memory, where a test may damage it past every check.

use std::error::Error;
use std::sync::Arc;

use half::bf16;
use heg_artifacts::manifest::{
    ElementType as Stored, Kernel, KernelUse, KnownAnswers, Port, Role, Rows, Variant, Weight,
};
use heg_artifacts::{AnswerMatch, Bundle, SectionId, judge};
use heg_openvino::{Core, HostBuffer, Memory, Tensor, TensorType, find_libraries};
use heg_spec::DeviceClass;

/// A bundle in memory, and a device to ask.
pub struct Asked {
    core: Core,
    bundle: Bundle,
    memory: Arc<HostBuffer>,
    question: KnownAnswers,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Returns a tensor of these values, and its memory.
fn filled(values: &[f32], element: Stored, shape: &[usize]) -> Result<(Arc<HostBuffer>, Tensor)> {
    let (bytes, element): (Vec<u8>, _) = match element {
        Stored::Bf16 => {
            let halves = values.iter().map(|x| bf16::from_f32(*x));
            (
                halves.flat_map(bf16::to_le_bytes).collect(),
                TensorType::Bf16,
            )
        }
        _ => (
            values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorType::F32,
        ),
    };
    let memory = HostBuffer::new(bytes.len())?;
    memory.write(0, &bytes)?;
    let memory = Arc::new(memory);
    let tensor = Tensor::new(memory.clone(), 0, element, shape)?;
    Ok((memory, tensor))
}

fn floats(memory: &HostBuffer, element: Stored) -> Result<Vec<f32>> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0..bytes.len(), &mut bytes)?;
    Ok(match element {
        Stored::Bf16 => bytes
            .chunks_exact(2)
            .map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32())
            .collect(),
        _ => bytes
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]))
            .collect(),
    })
}

/// Properties with which the plugin multiplies stored weights with f32 activations.
pub const EXACT: [(&str, &str); 2] = [
    ("INFERENCE_PRECISION_HINT", "f32"),
    ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
];

impl Asked {
    /// Copies the bytes of `bundle`.
    pub fn new(bundle: Bundle) -> Result<Self> {
        let memory = HostBuffer::new(bundle.mapping().len())?;
        memory.write(0, bundle.mapping())?;
        Ok(Self {
            core: Core::load_from(&find_libraries()?)?,
            question: bundle.manifest().known_answers.ok_or("no known answers")?,
            bundle,
            memory: Arc::new(memory),
        })
    }

    /// Returns the undamaged bundle.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Returns all places with their names: layer by layer, then the head.
    pub fn places(&self) -> Vec<(String, KernelUse)> {
        let manifest = self.bundle.manifest();
        let layers = manifest.layers.iter().enumerate();
        let named = layers.flat_map(|(index, layer)| {
            [
                ("qkv", &layer.qkv),
                ("mha", &layer.mha),
                ("ffn", &layer.ffn),
            ]
            .map(|(name, place)| (format!("{name} of layer {index}"), place.clone()))
        });
        named
            .chain([("head".to_owned(), manifest.head.clone())])
            .collect()
    }

    /// Overwrites bytes of a section in memory, from `offset` on.
    pub fn damage(&self, section: SectionId, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.bundle.section_range(section)?.start + offset;
        Ok(self.memory.write(at as usize, bytes)?)
    }

    /// Runs the CPU's variant of a place's kernel and judges each output port.
    pub fn ask(
        &self,
        place: &KernelUse,
        properties: &[(&str, &str)],
        tolerance: Option<f32>,
    ) -> Result<Vec<AnswerMatch>> {
        let kernel = &self.bundle.manifest().kernels[place.kernel.0 as usize];
        let mut variants = kernel.variants.iter();
        let variant = variants.find(|variant| variant.device == DeviceClass::Cpu);
        let variant = variant.ok_or("no variant for the CPU")?;
        let found = self.run(place, kernel, variant, properties)?;
        let answer = self.bundle.section(place.answer.ok_or("no answer")?)?;
        let (answer, _) = answer.as_chunks();
        let expected: Vec<f32> = answer.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let tolerance = tolerance.unwrap_or(variant.tolerance);
        let mut rest = expected.as_slice();
        let mut verdicts = Vec::new();
        for output in &found {
            let (expected, behind) = rest.split_at(output.len());
            verdicts.push(judge(expected, output, tolerance));
            rest = behind;
        }
        Ok(verdicts)
    }

    fn run(
        &self,
        place: &KernelUse,
        kernel: &Kernel,
        variant: &Variant,
        properties: &[(&str, &str)],
    ) -> Result<Vec<Vec<f32>>> {
        let ir = String::from_utf8(self.bundle.section(variant.ir)?.to_vec())?;
        let ir = self.resolve(&ir, place)?;
        let bytes = [self.memory_bytes()];
        let all = Tensor::new(self.memory.clone(), 0, TensorType::U8, &bytes)?;
        let model = self.core.read_model(ir.as_bytes(), Some(&all))?;
        let mut request = self.core.compile(&model, "CPU", properties)?.request()?;
        for (index, port) in kernel.inputs.iter().enumerate() {
            request.bind_input(index, self.input(port, variant, place)?)?;
        }
        let mut outputs = Vec::new();
        for (index, port) in kernel.outputs.iter().enumerate() {
            let shape = [self.question.rows as usize, port.width as usize];
            let element = variant.port_element(port.role);
            let (memory, tensor) = filled(&vec![f32::NAN; shape[0] * shape[1]], element, &shape)?;
            request.bind_output(index, tensor)?;
            outputs.push((memory, element));
        }
        request.infer()?;
        let read = |(memory, element): (Arc<HostBuffer>, Stored)| floats(&memory, element);
        outputs.into_iter().map(read).collect()
    }

    fn memory_bytes(&self) -> usize {
        self.bundle.mapping().len()
    }

    /// Returns the values of an input, implemented independently of the compiler.
    fn input(&self, port: &Port, variant: &Variant, place: &KernelUse) -> Result<Tensor> {
        let (rows, width) = (self.question.rows_of(port.rows), port.width as usize);
        let table = place
            .rope
            .map(|id| &self.bundle.manifest().rope[id.0 as usize]);
        let factors = |section: SectionId| -> Result<Vec<f32>> {
            let (table, _) = self.bundle.section(section)?.as_chunks();
            let first = self.question.position() as usize * width;
            let rows = &table[first..first + rows as usize * width];
            Ok(rows.iter().map(|x| f32::from_le_bytes(*x)).collect())
        };
        let values = match (port.role, table) {
            (Role::Position, _) => {
                let memory = HostBuffer::new(8)?;
                memory.write(0, &i64::from(self.question.position()).to_le_bytes())?;
                return Ok(Tensor::new(Arc::new(memory), 0, TensorType::I64, &[1])?);
            }
            (Role::Cos, Some(table)) => factors(table.cos)?,
            (Role::Sin, Some(table)) => factors(table.sin)?,
            _ => self.question.values(port),
        };
        assert_ne!(port.rows, Rows::One);
        let element = variant.port_element(port.role);
        let (_, tensor) = filled(&values, element, &[rows as usize, width])?;
        Ok(tensor)
    }

    /// Returns an IR with the true offsets of its place's sections.
    fn resolve(&self, ir: &str, place: &KernelUse) -> Result<String> {
        let manifest = self.bundle.manifest();
        let weights = place
            .weights
            .iter()
            .map(|id| &manifest.weights[id.0 as usize]);
        let sections: Vec<SectionId> = weights.flat_map(Weight::sections).collect();
        let mut parts = ir.split("offset=\"@");
        let mut resolved = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (reference, rest) = part.split_once('"').ok_or("an open quote")?;
            let offset = match reference.strip_prefix("c+") {
                Some(literal) => {
                    self.bundle.section_range(manifest.literals)?.start + literal.parse::<u64>()?
                }
                None => {
                    self.bundle
                        .section_range(sections[reference.parse::<usize>()?])?
                        .start
                }
            };
            resolved += &format!("offset=\"{offset}\"{rest}");
        }
        Ok(resolved)
    }
}
