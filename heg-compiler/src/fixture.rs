//! Models of `tests/fixtures`, for the tests of this crate.

use std::path::{Path, PathBuf};

use heg_spec::{Architecture, Fusion, ModelSpec, shipped};

use crate::graph::{Dims, OpGraph, build_head, build_layer};
use crate::heg::Heg;
use crate::options::Verify;
use crate::plan::Plan;
use crate::target::Target;
use heg_ingest::ConfigJson;

/// The families of `tests/fixtures/golden`, one for each shipped architecture.
pub(crate) const FAMILIES: [&str; 12] = [
    "bert",
    "bert_reranker",
    "gemma2",
    "gemma3",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
];

/// A model's description, without its weights.
pub(crate) struct Described {
    pub(crate) config: ConfigJson,
    pub(crate) architecture: Architecture,
    pub(crate) dims: Dims,
    spec: ModelSpec,
}

impl Described {
    /// A family of `tests/fixtures/golden`.
    pub(crate) fn family(name: &str) -> Self {
        Self::read(&path(&format!("golden/{name}/config.json")))
    }

    /// A config of `tests/fixtures`, by its file.
    pub(crate) fn read(path: &Path) -> Self {
        Self::new(path, ConfigJson::read(path).unwrap())
    }

    /// A config that is not in a file.
    pub(crate) fn parse(config: &str) -> Self {
        let path = Path::new("config.json");
        Self::new(path, ConfigJson::parse(path, config.as_bytes()).unwrap())
    }

    fn new(path: &Path, config: ConfigJson) -> Self {
        let model_type = config.text("model_type").unwrap();
        let architecture = shipped::architecture_of(model_type, &config.classes()).unwrap();
        let dims = Dims::bind(&architecture, &config).unwrap();
        let folder = path.parent().unwrap().to_owned();
        Self {
            spec: ModelSpec::of_folder("model".to_owned(), folder),
            config,
            architecture,
            dims,
        }
    }

    pub(crate) fn layer(&self, layer: u32) -> OpGraph {
        build_layer(&self.architecture, &self.config, &self.dims, layer).unwrap()
    }

    pub(crate) fn head(&self) -> OpGraph {
        build_head(&self.architecture, &self.config, &self.dims).unwrap()
    }

    pub(crate) fn plan(&self) -> Plan {
        let target = Target::new(self.spec.clone(), PathBuf::new());
        Plan::new(&target, &self.config, Verify::Always).unwrap()
    }

    pub(crate) fn heg(&self) -> Heg {
        self.plan().heg
    }
}

/// The shipped fusion plan.
pub(crate) fn fusion() -> Fusion {
    shipped::fusion("agent-xpu").unwrap()
}

/// A file or folder of `tests/fixtures`.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}
