//! Bundles of a few kilobytes with all features: both weight forms, rotary tables, text, tied weights.
//!
//! The contents are deterministic noise, so the same plan gives the same bundle on every machine.

use std::collections::BTreeMap;
use std::path::Path;

use heg_artifacts::manifest::*;
use heg_artifacts::{Bundle, Error, Manifest, Section, SectionId, Store, write_bundle};
use heg_spec::{Activations, DeviceClass, Group, NpuPlatform, WeightForm};

/// The properties of a bundle to be made.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) layers: u32,
    pub(crate) hidden: u32,
    pub(crate) kv_heads: u32,
    pub(crate) heads_per_kv: u32,
    /// Half the head dimension.
    pub(crate) rotary: u32,
    pub(crate) vocab: u32,
    pub(crate) context_tokens: u32,
    pub(crate) chunk_tokens: Vec<u32>,
    pub(crate) embedding_scale: f32,
    pub(crate) text: Option<String>,
    /// Baked states: names, and pages of each.
    pub(crate) states: Vec<(&'static str, u32)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            name: "tiny".to_owned(),
            layers: 2,
            hidden: 8,
            kv_heads: 2,
            heads_per_kv: 2,
            rotary: 2,
            vocab: 16,
            context_tokens: 32,
            chunk_tokens: vec![4, 16],
            embedding_scale: 1.0,
            text: Some("{{ messages }}".to_owned()),
            states: Vec::new(),
        }
    }
}

/// Number of tokens of the known-answer call.
const ASKED_ROWS: u64 = 1;

/// A manifest under construction, with its sections in a store.
struct Maker<'a> {
    store: &'a Store,
    sections: Vec<Section>,
    weights: Vec<Weight>,
}

impl Maker<'_> {
    fn section(&mut self, bytes: &[u8]) -> Result<SectionId, Error> {
        let section = self.store.put_bytes(bytes)?;
        if !self.sections.contains(&section) {
            self.sections.push(section);
        }
        Ok(section.id)
    }

    fn weight(&mut self, name: &str, parameter: &Parameter) -> Result<WeightId, Error> {
        let Parameter { element, shape, .. } = parameter;
        let rows = u64::from(shape[0]);
        let count: u64 = shape
            .iter()
            .map(|dimension| u64::from(*dimension))
            .product();
        let values = self.section(&noise(name, count * element.bytes()))?;
        let mut of_rows = |what: &str, wanted| match wanted {
            true => Ok(Some(
                self.section(&noise(&format!("{name} {what}"), rows * 4))?,
            )),
            false => Ok::<_, Error>(None),
        };
        let scales = of_rows("scales", *element == ElementType::I8)?;
        let centres = of_rows("centres", parameter.centred)?;
        let id = WeightId(self.weights.len() as u32);
        let source = SectionId::of(name.as_bytes());
        self.weights.push(Weight {
            name: name.to_owned(),
            element: *element,
            shape: shape.clone(),
            group_columns: None,
            values,
            scales,
            centres,
            source,
        });
        Ok(id)
    }

    fn place(&mut self, prefix: &str, kernel: u32, kernels: &[Kernel]) -> Result<KernelUse, Error> {
        let Kernel {
            parameters,
            outputs,
            ..
        } = &kernels[kernel as usize];
        let outputs: u64 = outputs.iter().map(|port| u64::from(port.width)).sum();
        let weights = parameters
            .iter()
            .map(|parameter| self.weight(&format!("{prefix}.{}", parameter.name), parameter));
        let weights = weights.collect::<Result<_, _>>()?;
        let rope = (kernel == 0).then_some(RopeId(0));
        let answer = self.section(&noise(
            &format!("{prefix} answer"),
            outputs * ASKED_ROWS * 4,
        ))?;
        Ok(KernelUse {
            kernel: KernelId(kernel),
            weights,
            rope,
            answer: Some(answer),
        })
    }
}

/// Puts the sections of a plan into a store and describes them.
pub(crate) fn manifest(plan: &Plan, store: &Store) -> Result<Manifest, Error> {
    let mut maker = Maker {
        store,
        sections: Vec::new(),
        weights: Vec::new(),
    };
    let head_dim = 2 * plan.rotary;
    let heads = plan.kv_heads * plan.heads_per_kv;
    let kernels = kernels(plan, &mut maker)?;
    let table = Parameter {
        name: String::new(),
        element: ElementType::F16,
        shape: vec![plan.vocab, plan.hidden],
        group_columns: None,
        centred: false,
    };
    let embedding = Embedding {
        table: maker.weight("model.embed_tokens.weight", &table)?,
        scale: plan.embedding_scale,
        positions: None,
        token_types: None,
    };
    let mut layers = Vec::new();
    for layer in 0..plan.layers {
        let mut place =
            |kernel: u32| maker.place(&format!("model.layers.{layer}"), kernel, &kernels);
        layers.push(Layer {
            qkv: place(0)?,
            mha: place(1)?,
            ffn: place(2)?,
        });
    }
    let head = maker.place("lm_head", 3, &kernels)?;
    let rope_bytes = u64::from(plan.context_tokens * plan.rotary) * 4;
    let rope = RopeTable {
        rows: plan.context_tokens,
        width: plan.rotary,
        cos: maker.section(&noise("cos", rope_bytes))?,
        sin: maker.section(&noise("sin", rope_bytes))?,
    };
    let text = text(plan, &mut maker)?;
    let heg = StageGraphs {
        prefill: graph(plan, &kernels),
        decode: graph(plan, &kernels),
    };
    let literals = maker.section(b"literals")?;
    let annotations = maker.section(b"annotations")?;
    let states = plan.states.iter();
    let states = states.map(|(name, pages)| state(plan, &mut maker, name, *pages));
    let states = states.collect::<Result<_, _>>()?;
    Ok(Manifest {
        revision: MANIFEST_REVISION,
        model: Model {
            name: plan.name.clone(),
            architecture: "llama".to_owned(),
            weights: WeightForm::W8A16,
            hidden: plan.hidden,
            heads,
            kv_heads: plan.kv_heads,
            head_dim,
            vocab: plan.vocab,
            context_tokens: plan.context_tokens,
            chunk_tokens: plan.chunk_tokens.clone(),
            parameters: 1234,
        },
        text,
        embedding,
        vectors: None,
        rope: vec![rope],
        weights: maker.weights,
        literals,
        kernels,
        layers,
        head,
        heg,
        known_answers: Some(KnownAnswers {
            seed: 1,
            rows: ASKED_ROWS as u32,
            context: plan.context_tokens,
        }),
        annotations: Some(annotations),
        partitions: None,
        pieces: Vec::new(),
        gpu: None,
        states,
        provenance: Provenance {
            compiler: "0.1.0".to_owned(),
            openvino: "2026.4.1".to_owned(),
            npu_compiler: Some("2026.4.1".to_owned()),
            inputs: [("config.json".to_owned(), SectionId::of(b"{}"))].into(),
        },
        sections: maker.sections,
    })
}

/// The graph of a stage in which all variants run.
fn graph(plan: &Plan, kernels: &[Kernel]) -> StageGraph {
    let nodes = kernels.iter().zip(0..).map(|(kernel, at)| {
        let mut variants: BTreeMap<DeviceClass, Vec<u32>> = BTreeMap::new();
        for (variant, index) in kernel.variants.iter().zip(0..) {
            variants.entry(variant.device).or_default().push(index);
        }
        GraphNode {
            kernel: KernelId(at),
            places: if kernel.group == Group::Head {
                1
            } else {
                plan.layers
            },
            variants,
        }
    });
    let (layer, next) = (EdgeReach::Layer, EdgeReach::Next);
    let edges = [
        (0, 1, Role::Query, layer, plan.layers),
        (0, 1, Role::Key, layer, plan.layers),
        (0, 1, Role::Value, layer, plan.layers),
        (1, 2, Role::Attended, layer, plan.layers),
        (2, 0, Role::Hidden, next, plan.layers - 1),
        (2, 2, Role::Hidden, next, plan.layers - 1),
        (2, 3, Role::Hidden, next, 1),
    ];
    let edges = edges.into_iter().filter(|(.., places)| *places > 0);
    let edges = edges.map(|(from, to, role, reach, places)| {
        let reader = &kernels[to as usize];
        let mut inputs = reader.inputs.iter();
        let port = inputs.find(|port| port.role == role).unwrap();
        let elements = reader.variants.iter().map(|it| it.port_element(role));
        GraphEdge {
            from,
            to,
            role,
            rows: port.rows,
            reach,
            places,
            row_bytes: elements
                .map(|element| (element, u64::from(port.width) * element.bytes()))
                .collect(),
            crossing: Crossing::between(kernels[from as usize].group, reader.group),
        }
    });
    StageGraph {
        nodes: nodes.collect(),
        edges: edges.collect(),
    }
}

/// A store in `folder`, with the sections of a plan in it.
pub(crate) fn stored(plan: &Plan, folder: &Path) -> (Store, Manifest) {
    let store = Store::open(folder.join("store")).unwrap();
    let manifest = manifest(plan, &store).unwrap();
    (store, manifest)
}

/// The bytes of a plan's bundle.
pub(crate) fn bundle_bytes(plan: &Plan) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (store, manifest) = stored(plan, folder.path());
    let path = folder.path().join("bundle.heg");
    write_bundle(&path, &manifest, &store, &|_| {}).unwrap();
    std::fs::read(path).unwrap()
}

/// Checks everything that opening leaves out.
pub(crate) fn verify(bytes: &[u8]) -> Result<Bundle, Error> {
    let bundle = Bundle::from_bytes(bytes)?;
    bundle.verify(std::num::NonZero::<usize>::MIN)?;
    Ok(bundle)
}

/// Pseudo-random bytes that depend on a name only.
pub(crate) fn noise(name: &str, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(count).unwrap()];
    blake3::Hasher::new()
        .update(name.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn text(plan: &Plan, maker: &mut Maker) -> Result<Text, Error> {
    let Some(template) = &plan.text else {
        return Ok(Text::default());
    };
    Ok(Text {
        tokenizer: Some(maker.section(br#"{"version": "1.0"}"#)?),
        chat_template: Some(maker.section(template.as_bytes())?),
        special_tokens: [("bos_token".to_owned(), format!("<{template}>"))].into(),
        eos_ids: vec![0, plan.vocab - 1],
    })
}

/// Tokens of a page of a baked state, and of its last one.
const PAGE_TOKENS: u32 = 4;
const LAST_TOKENS: u32 = 3;

/// A baked state. States have their first pages in common, and their last page is not whole.
fn state(plan: &Plan, maker: &mut Maker, name: &str, pages: u32) -> Result<BakedState, Error> {
    let bytes = |tokens: u32| {
        let half = u64::from(tokens * 2 * plan.rotary * plan.kv_heads) * 2;
        STATE_HEAD_BYTES + 2 * u64::from(plan.layers) * half
    };
    let page = |page| match page + 1 == pages {
        true => noise(&format!("{name} page {page}"), bytes(LAST_TOKENS)),
        false => noise(&format!("page {page}"), bytes(PAGE_TOKENS)),
    };
    let beginning =
        maker.section(format!("{{\"messages\": [], \"of\": \"{name}\"}}").as_bytes())?;
    let sections = (0..pages).map(|at| maker.section(&page(at)));
    Ok(BakedState {
        name: name.to_owned(),
        beginning,
        form: StateForm {
            arithmetic: 1,
            activations: Activations::I8,
            kv_cache: ElementType::Bf16,
        },
        page_tokens: PAGE_TOKENS,
        tokens: (0..PAGE_TOKENS * (pages - 1) + LAST_TOKENS)
            .map(|token| token % plan.vocab)
            .collect(),
        pages: sections.collect::<Result<_, _>>()?,
    })
}

fn kernels(plan: &Plan, maker: &mut Maker) -> Result<Vec<Kernel>, Error> {
    use Role::*;
    let query = 2 * plan.rotary * plan.kv_heads * plan.heads_per_kv;
    let key = 2 * plan.rotary * plan.kv_heads;
    let port = |role, rows, width| Port { role, rows, width };
    let parameter = |name: &str, element, shape: &[u32]| Parameter {
        name: name.to_owned(),
        element,
        shape: shape.to_vec(),
        group_columns: None,
        centred: element == ElementType::I8,
    };
    let mut kernel = |name: &str, group, inputs, outputs, parameters| -> Result<Kernel, Error> {
        Ok(Kernel {
            name: name.to_owned(),
            group,
            ops: vec!["op".to_owned()],
            inputs,
            outputs,
            parameters,
            work: Work {
                flops: vec![Term {
                    factor: 7,
                    tokens: 1,
                    context: 0,
                }],
                bytes: Vec::new(),
            },
            variants: variants(plan, name, group, maker)?,
        })
    };
    Ok(vec![
        kernel(
            "qkv",
            Group::Qkv,
            vec![
                port(Hidden, Rows::Tokens, plan.hidden),
                port(Cos, Rows::Tokens, plan.rotary),
                port(Sin, Rows::Tokens, plan.rotary),
            ],
            vec![
                port(Query, Rows::Tokens, query),
                port(Key, Rows::Tokens, key),
                port(Value, Rows::Tokens, key),
            ],
            vec![parameter("q_proj", ElementType::I8, &[query, plan.hidden])],
        )?,
        kernel(
            "mha",
            Group::Mha,
            vec![
                port(Query, Rows::Tokens, query),
                port(Key, Rows::Context, key),
                port(Value, Rows::Context, key),
                port(Position, Rows::One, 1),
            ],
            vec![port(Attended, Rows::Tokens, query)],
            Vec::new(),
        )?,
        kernel(
            "ffn",
            Group::Ffn,
            vec![
                port(Attended, Rows::Tokens, query),
                port(Hidden, Rows::Tokens, plan.hidden),
            ],
            vec![port(Hidden, Rows::Tokens, plan.hidden)],
            vec![parameter("norm", ElementType::F32, &[plan.hidden])],
        )?,
        kernel(
            "head",
            Group::Head,
            vec![port(Hidden, Rows::Tokens, plan.hidden)],
            vec![port(Logits, Rows::Tokens, plan.vocab)],
            vec![parameter("norm", ElementType::F32, &[plan.hidden])],
        )?,
    ])
}

fn variants(
    plan: &Plan,
    name: &str,
    group: Group,
    maker: &mut Maker,
) -> Result<Vec<Variant>, Error> {
    let ir = maker.section(format!("<net name=\"{name}\"/>").as_bytes())?;
    let program = maker.section(format!("program of {name}").as_bytes())?;
    let mut variants = vec![Variant {
        device: DeviceClass::Cpu,
        shape: ShapeClass::Dynamic,
        binding: Binding::Constant,
        activations: ElementType::F32,
        kv_cache: None,
        takes_trees: false,
        ir,
        program: Some(program),
        tolerance: 1e-4,
        blobs: Vec::new(),
    }];
    for &tokens in &plan.chunk_tokens {
        variants.push(Variant {
            device: DeviceClass::Npu,
            shape: match group {
                Group::Mha => ShapeClass::Bucket {
                    tokens,
                    context: plan.context_tokens.max(tokens),
                },
                Group::Qkv | Group::Ffn | Group::Head => ShapeClass::Static { tokens },
            },
            binding: Binding::Input,
            activations: ElementType::F16,
            kv_cache: None,
            takes_trees: group == Group::Mha && tokens <= 64,
            ir,
            program: None,
            tolerance: 1e-2,
            blobs: vec![Blob {
                platform: NpuPlatform::NPU3720,
                compatibility: Compatibility {
                    compiler: "8.4".to_owned(),
                    elf: "1.2.0".to_owned(),
                    tiles: Some(2),
                    stepping: None,
                    text: "compiler=8.4;npu=3720;t=2;elf=1.2.0".to_owned(),
                },
                section: maker.section(format!("{name} blob").as_bytes())?,
            }],
        });
    }
    Ok(variants)
}
