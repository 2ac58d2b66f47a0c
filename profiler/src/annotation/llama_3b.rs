//! The manifest of a llama-3.2-3b bundle, for tests, as far as annotations read it: kernels, their work and variants,
//! no bytes.

use std::collections::BTreeMap;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{
    Binding, ElementType, Embedding, Kernel, KernelId, KernelUse, Layer, Manifest, Model,
    Parameter, Port, Provenance, Role, Rows, ShapeClass, StageGraphs, Term, Text, Variant,
    WeightId, Work,
};
use heg_spec::{DeviceClass, Group, NpuPlatform, WeightForm};

use super::annotate::{BlobKey, VendorTables};
use super::vendor_table::VendorTable;

pub(super) const CHUNKS: [u32; 5] = [32, 64, 128, 256, 512];
pub(super) const BUCKETS: [u32; 4] = [512, 1024, 2048, 4096];
const HIDDEN: u32 = 3072;
const KEYS: u32 = 1024;
const INNER: u32 = 8192;
const VOCAB: u32 = 128_256;

/// The whole manifest: 28 layers of the same three kernels, and the head.
pub(crate) fn manifest() -> Manifest {
    let placed = |kernel| KernelUse {
        kernel: KernelId(kernel),
        weights: Vec::new(),
        rope: None,
        answer: None,
    };
    let layer = Layer {
        qkv: placed(0),
        mha: placed(1),
        ffn: placed(2),
    };
    Manifest {
        revision: 1,
        model: Model {
            name: "llama-3.2-3b".to_owned(),
            architecture: "llama".to_owned(),
            weights: WeightForm::W8A16,
            hidden: HIDDEN,
            heads: 24,
            kv_heads: 8,
            head_dim: 128,
            vocab: VOCAB,
            context_tokens: 8192,
            chunk_tokens: CHUNKS.to_vec(),
            parameters: 3_212_749_824,
        },
        text: Text::default(),
        embedding: Embedding {
            table: WeightId(0),
            scale: 1.0,
            positions: None,
            token_types: None,
        },
        vectors: None,
        rope: Vec::new(),
        weights: Vec::new(),
        literals: SectionId::of(b""),
        kernels: kernels(),
        layers: vec![layer; 28],
        head: placed(3),
        heg: StageGraphs::default(),
        known_answers: None,
        annotations: None,
        partitions: None,
        pieces: Vec::new(),
        gpu: None,
        states: Vec::new(),
        provenance: Provenance {
            compiler: "0.1.0".to_owned(),
            openvino: "2026.4.1".to_owned(),
            npu_compiler: None,
            inputs: BTreeMap::new(),
        },
        sections: Vec::new(),
    }
}

fn kernels() -> Vec<Kernel> {
    use Role::{Attended, Cos, Hidden, Key, Logits, Position, Query, Sin, Value};
    let port = |role, width| Port {
        role,
        rows: Rows::Tokens,
        width,
    };
    let cache = |role| Port {
        rows: Rows::Context,
        ..port(role, KEYS)
    };
    let position = Port {
        rows: Rows::One,
        ..port(Position, 1)
    };
    let qkv = token_wise(
        "qkv",
        Group::Qkv,
        vec![port(Hidden, HIDDEN), port(Cos, 64), port(Sin, 64)],
        vec![port(Query, HIDDEN), port(Key, KEYS), port(Value, KEYS)],
        &[(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN)],
    );
    let mha = Kernel {
        name: "mha".to_owned(),
        group: Group::Mha,
        ops: vec!["attention".to_owned()],
        inputs: vec![port(Query, HIDDEN), cache(Key), cache(Value), position],
        outputs: vec![port(Attended, HIDDEN)],
        parameters: Vec::new(),
        work: Work {
            flops: vec![term(24 * (4 * 128 + 4), 1, 1)],
            bytes: vec![
                term(4 * u64::from(HIDDEN), 1, 0),
                term(4 * u64::from(KEYS), 0, 1),
            ],
        },
        variants: mha_variants(),
    };
    let ffn = token_wise(
        "ffn",
        Group::Ffn,
        vec![port(Attended, HIDDEN), port(Hidden, HIDDEN)],
        vec![port(Hidden, HIDDEN)],
        &[
            (HIDDEN, HIDDEN),
            (INNER, HIDDEN),
            (INNER, HIDDEN),
            (HIDDEN, INNER),
        ],
    );
    let head = token_wise(
        "head",
        Group::Head,
        vec![port(Hidden, HIDDEN)],
        vec![port(Logits, VOCAB)],
        &[(VOCAB, HIDDEN)],
    );
    vec![qkv, mha, ffn, head]
}

/// A kernel of int8 products, counted as the compiler does: weights once, activations in f16.
fn token_wise(
    name: &str,
    group: Group,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    weights: &[(u32, u32)],
) -> Kernel {
    let elements = |(rows, columns): &(u32, u32)| u64::from(*rows) * u64::from(*columns);
    let products: u64 = weights.iter().map(elements).sum();
    let widths = inputs
        .iter()
        .chain(&outputs)
        .map(|port| u64::from(port.width));
    let dynamic = [DeviceClass::Cpu, DeviceClass::Igpu]
        .map(|device| variant(device, ShapeClass::Dynamic, Binding::Constant));
    let fixed = CHUNKS.map(|tokens| {
        variant(
            DeviceClass::Npu,
            ShapeClass::Static { tokens },
            Binding::Input,
        )
    });
    Kernel {
        name: name.to_owned(),
        group,
        ops: Vec::new(),
        work: Work {
            flops: vec![term(2 * products, 1, 0)],
            bytes: vec![term(products, 0, 0), term(2 * widths.sum::<u64>(), 1, 0)],
        },
        inputs,
        outputs,
        parameters: weights
            .iter()
            .enumerate()
            .map(|(index, (rows, columns))| Parameter {
                name: format!("weight.{index}"),
                element: ElementType::I8,
                shape: vec![*rows, *columns],
                group_columns: None,
                centred: false,
            })
            .collect(),
        variants: dynamic.into_iter().chain(fixed).collect(),
    }
}

fn mha_variants() -> Vec<Variant> {
    let dynamic = [DeviceClass::Cpu, DeviceClass::Igpu]
        .map(|device| variant(device, ShapeClass::Dynamic, Binding::Constant));
    let fixed = CHUNKS.into_iter().flat_map(|tokens| {
        BUCKETS.map(|context| {
            let shape = ShapeClass::Bucket { tokens, context };
            variant(DeviceClass::Npu, shape, Binding::Input)
        })
    });
    dynamic.into_iter().chain(fixed).collect()
}

fn variant(device: DeviceClass, shape: ShapeClass, binding: Binding) -> Variant {
    Variant {
        device,
        shape,
        binding,
        activations: ElementType::F16,
        kv_cache: None,
        takes_trees: false,
        ir: SectionId::of(b""),
        program: None,
        tolerance: 0.05,
        blobs: Vec::new(),
    }
}

fn term(factor: u64, tokens: u8, context: u8) -> Term {
    Term {
        factor,
        tokens,
        context,
    }
}

/// Tables for every NPU variant on the platforms. On 3720 at 1300 MHz `ffn` has the compiler's own estimates;
/// the rest is scaled from them by work, and by a round factor per platform.
pub(super) fn vendor_tables(platforms: &[(u32, f64)]) -> VendorTables {
    let mut tables = VendorTables::new();
    for (kernel, found) in manifest().kernels.iter().enumerate() {
        for (variant, shape) in found.variants.iter().map(|v| v.shape).enumerate() {
            let Some(chunk) = shape.chunk() else { continue };
            let context = shape.bucket().unwrap_or(1);
            let ffn_us = match chunk {
                32 => 2_220.0,
                64 => 4_220.0,
                128 => 8_090.0,
                256 => 15_700.0,
                _ => 36_400.0,
            };
            let manifest = manifest();
            let share = found.work.flops(chunk.into(), context.into())
                / manifest.kernels[2].work.flops(chunk.into(), 1);
            for &(platform, factor) in platforms {
                let latency_us = ffn_us * share * factor;
                let table = [700, 850, 1000, 1150, 1300]
                    .map(|mhz| (mhz, latency_us * 1300.0 / f64::from(mhz)));
                let key = BlobKey {
                    kernel,
                    variant,
                    platform: NpuPlatform::new(platform),
                };
                tables.insert(key, VendorTable::new(table.to_vec()).unwrap());
            }
        }
    }
    tables
}
