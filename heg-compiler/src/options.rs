//! A caller's options for a compile, besides the model.

use heg_artifacts::StoreSharing;
use heg_profiler::measure::Profile;
use heg_spec::{KvForm, ModelSpec, NpuPlatform, Soc, WeightForm};

/// Options of a compile. By default they follow the model file and use the NPU toolchain that is set up.
#[derive(Debug, Clone, Default)]
pub struct CompileOptions {
    /// Name in the bundle instead of the model file's, the folder's or the GGUF file's.
    pub name: Option<String>,
    /// Weight form instead of the model file's.
    pub weights: Option<WeightForm>,
    /// Form of keys and values instead of the model file's.
    pub kv: Option<KvForm>,
    /// NPU platforms instead of the model file's.
    pub npu_platforms: Option<Vec<NpuPlatform>>,
    /// Handling of NPU blobs that cannot be made.
    pub npu_blobs: NpuBlobs,
    /// Handling of GPU modules.
    pub gpu_modules: GpuModules,
    /// Measurements of devices; they become annotations that precede those of data sheets and vendors.
    pub profiles: Vec<Profile>,
    /// Machines for which the bundle states how two devices share products.
    pub partitions: Vec<Soc>,
    /// Machines that the build cache is shared with.
    pub sharing: StoreSharing,
    /// Builds in which the compiler checks its own work between passes.
    pub verify: Verify,
}

/// Handling of NPU blobs if the NPU's compiler is absent or refuses a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NpuBlobs {
    /// Such a blob is left out and reported; the device then compiles the kernel itself.
    #[default]
    WherePossible,
    /// Such a blob fails the compile.
    Required,
    /// No blob is made.
    Off,
}

/// Handling of the modules with which GPUs run a bundle's programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuModules {
    /// The bundle has those that its programs need.
    #[default]
    Included,
    /// The bundle has none; GPUs then run modules of the runtime.
    Off,
}

/// Builds in which the compiler checks its own work between passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verify {
    /// In builds with debug assertions.
    #[default]
    DebugBuilds,
    /// In every build.
    Always,
}

impl Verify {
    /// Whether this build verifies.
    pub(crate) fn is_on(self) -> bool {
        cfg!(debug_assertions) || self == Self::Always
    }
}

impl CompileOptions {
    /// Applies these options to the model's spec.
    pub(crate) fn apply(&self, spec: &ModelSpec) -> ModelSpec {
        let mut spec = spec.clone();
        if let Some(name) = &self.name {
            spec.name.clone_from(name);
        }
        spec.weights = self.weights.unwrap_or(spec.weights);
        spec.kv = self.kv.unwrap_or(spec.kv);
        if let Some(platforms) = &self.npu_platforms {
            spec.npu_platforms.clone_from(platforms);
        }
        if self.npu_blobs == NpuBlobs::Off {
            spec.npu_platforms.clear();
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_the_folders() {
        let spec = ModelSpec::of_folder("downloads".to_owned(), "downloads".into());
        let mut options = CompileOptions::default();
        assert_eq!(options.apply(&spec).name, "downloads");
        options.name = Some("agent".to_owned());
        let applied = options.apply(&spec);
        assert_eq!(applied.name, "agent");
        assert_eq!(applied.source, spec.source);
    }
}
