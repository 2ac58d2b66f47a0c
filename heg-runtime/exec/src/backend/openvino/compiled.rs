//! The cache of forms compiled on a device, for the next start.
//!
//! It keeps forms without weights: input-bound kernels and attention, a megabyte each at most. A form that holds
//! weights exports them too (50 MB for an `ffn` of the 1B shape), which would store the bundle twice; GPU plugins keep
//! such a form without them by themselves, see [`plugin_properties`]. Nothing is kept for the CPU: it reads an
//! input-bound form back no faster than it compiles it (1B `ffn` of 256 tokens: 132 ms against 132 ms, of 32 tokens
//! 105 ms against 128 ms, two busy cores), and an imported form has lost `INFERENCE_PRECISION_HINT`.
//!
//! A file is named by a hash of all that went into it, and begins with a hash of what follows; it is written under
//! another name and renamed. The folder is the user's alone, since what it holds is run: one that others may write
//! to is not used. The least recently used files go first when [`BUDGET_BYTES`] are exceeded.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{ShapeClass, Variant};
use heg_files::OwnFolder;
use heg_openvino::{CompiledModel, Core, HostBuffer, Tensor, TensorType};
use heg_spec::DeviceClass;
use heg_spec::soc::Device;

use crate::ladder::DeviceFacts;

/// Compiled forms of this machine, in a folder.
pub(super) struct CompiledCache {
    folder: OwnFolder,
    openvino: String,
    devices: Vec<DeviceFacts>,
}

impl CompiledCache {
    /// Opens the cache below `cache`; none if no folder can be made that only the user can write to.
    pub(super) fn open(cache: &OwnFolder, core: &Core, devices: &[DeviceFacts]) -> Option<Self> {
        let folder = cache.folder("compiled").ok()?;
        Some(Self {
            folder,
            openvino: core.version().to_owned(),
            devices: devices.to_vec(),
        })
    }

    /// Name of a form of a variant in a shape: a hash of IR, shape and literals, and of device, driver, plugin and
    /// properties. None for devices that compile as fast as they read.
    pub(super) fn key(
        &self,
        role: DeviceClass,
        device: &Device,
        (variant, shape): (&Variant, ShapeClass),
        literals: SectionId,
    ) -> Option<SectionId> {
        let mut devices = self.devices.iter();
        let facts = devices.find(|facts| facts.role == role)?;
        if is_cpu(&device.openvino) {
            return None;
        }
        let parts = (
            &self.openvino,
            &facts.name,
            &facts.full_name,
            &facts.driver,
            (&device.properties, &device.mha_properties),
            (variant.ir, shape, literals),
        );
        Some(SectionId::of(
            format!("heg compiled 1 {parts:?}").as_bytes(),
        ))
    }

    /// The form of that name, if it is there and undamaged, and the device still accepts it.
    pub(super) fn recall(
        &self,
        key: &SectionId,
        core: &Core,
        device: &str,
    ) -> Option<CompiledModel> {
        let name = file_name(key);
        let blob = read_whole(&self.folder, &name)?;
        let compiled = import(&blob, core, device);
        let path = self.folder.path().join(name);
        match &compiled {
            // Its time is what the budget goes by.
            Some(_) => drop(touch(&path)),
            None => drop(fs::remove_file(&path)),
        }
        compiled
    }

    /// Stores a form. Failing to do so is no error: the next start compiles it again.
    pub(super) fn remember(&self, key: &SectionId, compiled: &CompiledModel) {
        let exported = self
            .folder
            .path()
            .join(format!("{key}.export-{}", std::process::id()));
        if compiled.export_to(&exported).is_ok()
            && let Ok(blob) = fs::read(&exported)
        {
            let hash = SectionId::of(&blob);
            let _ = self
                .folder
                .write(&file_name(key), &[hash.as_bytes(), &blob]);
            let _ = shrink(self.folder.path(), BUDGET_BYTES);
        }
        let _ = fs::remove_file(exported);
    }
}

fn file_name(key: &SectionId) -> String {
    format!("{key}.blob")
}

/// Properties with which a GPU plugin keeps its own compiled forms, without weights.
pub(super) fn plugin_properties(cache: &OwnFolder, device: &str) -> Vec<(String, String)> {
    if DeviceClass::of_openvino(device) != Some(DeviceClass::Igpu) {
        return Vec::new();
    }
    let Ok(folder) = cache.folder("plugin") else {
        return Vec::new();
    };
    // What a plugin leaves here is bounded like our own.
    let _ = shrink(folder.path(), BUDGET_BYTES);
    vec![
        ("CACHE_DIR".to_owned(), folder.path().display().to_string()),
        ("CACHE_MODE".to_owned(), "OPTIMIZE_SIZE".to_owned()),
    ]
}

pub(super) fn is_cpu(device: &str) -> bool {
    DeviceClass::of_openvino(device) == Some(DeviceClass::Cpu)
}

/// The content of a file that begins with its hash.
fn read_whole(folder: &OwnFolder, name: &str) -> Option<Vec<u8>> {
    let bytes = folder.read(name, BLOB_BYTES_MAX).ok()??;
    let (hash, blob) = bytes.split_at_checked(SectionId::BYTES)?;
    (SectionId::of(blob).as_bytes() == hash).then(|| blob.to_vec())
}

fn import(blob: &[u8], core: &Core, device: &str) -> Option<CompiledModel> {
    let buffer = HostBuffer::new(blob.len()).ok()?;
    buffer.write(0, blob).ok()?;
    let view = Tensor::new(Arc::new(buffer), 0, TensorType::U8, &[blob.len()]).ok()?;
    core.import(&view, device).ok()
}

fn touch(path: &Path) -> std::io::Result<()> {
    fs::File::options()
        .append(true)
        .open(path)?
        .set_modified(SystemTime::now())
}

/// Removes the oldest files until at most `budget_bytes` are left.
fn shrink(folder: &Path, budget_bytes: u64) -> std::io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let data = entry.metadata()?;
        if data.is_file() {
            files.push((data.modified()?, data.len(), entry.path()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in files {
        if total <= budget_bytes {
            break;
        }
        fs::remove_file(path)?;
        total -= length;
    }
    Ok(())
}

/// Chosen: some hundred forms of a few models.
const BUDGET_BYTES: u64 = 512 << 20;

/// Chosen: far above the 2 MB of the largest form without weights.
const BLOB_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_or_skip;

    #[test]
    fn a_changed_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.blob");
        let folder = OwnFolder::create(folder.path()).unwrap();
        let read = || read_whole(&folder, "x.blob");
        let blob = b"compiled".as_slice();
        folder
            .write("x.blob", &[SectionId::of(blob).as_bytes(), blob])
            .unwrap();
        assert_eq!(read().as_deref(), Some(blob));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(read(), None, "byte {at}");
        }
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(), None, "{length} bytes");
        }
    }

    #[test]
    fn the_oldest_files_go_first() {
        let folder = tempfile::tempdir().unwrap();
        for (name, age) in [("old", 300), ("new", 100), ("middle", 200)] {
            let path = folder.path().join(name);
            fs::write(&path, [0; 10]).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        let left = || {
            let mut names: Vec<_> = fs::read_dir(folder.path())
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            names
        };
        shrink(folder.path(), 30).unwrap();
        assert_eq!(left(), ["middle", "new", "old"]);
        shrink(folder.path(), 29).unwrap();
        assert_eq!(left(), ["middle", "new"]);
        touch(&folder.path().join("middle")).unwrap();
        shrink(folder.path(), 10).unwrap();
        assert_eq!(left(), ["middle"]);
    }

    #[test]
    fn nothing_is_kept_for_the_cpu() {
        assert!(is_cpu("CPU") && !is_cpu("NPU") && !is_cpu("GPU.0"));
    }

    /// x[?,4] to its double, as an IR.
    const TWICE: &str = r#"<?xml version="1.0"?><net name="twice" version="11"><layers>
        <layer id="0" name="x" type="Parameter" version="opset1"><data element_type="f32" shape="-1,4"/>
        <output><port id="0" precision="FP32"><dim>-1</dim><dim>4</dim></port></output></layer>
        <layer id="1" name="y" type="Add" version="opset1"><data auto_broadcast="numpy"/>
        <input><port id="0"><dim>-1</dim><dim>4</dim></port><port id="1"><dim>-1</dim><dim>4</dim></port></input>
        <output><port id="2" precision="FP32"><dim>-1</dim><dim>4</dim></port></output></layer>
        <layer id="2" name="z" type="Result" version="opset1">
        <input><port id="0"><dim>-1</dim><dim>4</dim></port></input></layer></layers>
        <edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
        <edge from-layer="0" from-port="0" to-layer="1" to-port="1"/>
        <edge from-layer="1" from-port="2" to-layer="2" to-port="0"/></edges></net>"#;

    /// Accelerators are not here, so the way through export, file and import is walked with the CPU's forms.
    #[test]
    fn what_is_kept_is_imported_and_what_is_spoiled_is_removed() {
        let Some(core) = core_or_skip() else { return };
        let folder = tempfile::tempdir().unwrap();
        let folder = OwnFolder::create(folder.path()).unwrap();
        let cache = CompiledCache::open(&folder, &core, &[]).unwrap();
        let model = core.read_model(TWICE.as_bytes(), None).unwrap();
        let compiled = core.compile(&model, "CPU", &[]).unwrap();
        let key = SectionId::of(b"twice");
        assert!(cache.recall(&key, &core, "CPU").is_none());
        cache.remember(&key, &compiled);
        let kept: Vec<_> = fs::read_dir(cache.folder.path()).unwrap().collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let recalled = cache.recall(&key, &core, "CPU").unwrap();
        assert_eq!(recalled.inputs(), compiled.inputs());
        // Whole, but nothing that the device takes.
        let blob = b"nothing".as_slice();
        let name = file_name(&key);
        let hash = SectionId::of(blob);
        let parts = [hash.as_bytes().as_slice(), blob];
        cache.folder.write(&name, &parts).unwrap();
        assert!(cache.recall(&key, &core, "CPU").is_none());
        assert!(!cache.folder.path().join(name).exists());
    }

    #[test]
    fn the_key_follows_all_that_a_form_depends_on() {
        let Some(core) = core_or_skip() else { return };
        let folder = tempfile::tempdir().unwrap();
        let key_of = |facts: DeviceFacts, property: &str, ir: &[u8], shape: ShapeClass| {
            let folder = OwnFolder::create(folder.path()).unwrap();
            let cache = CompiledCache::open(&folder, &core, &[facts]).unwrap();
            let soc = format!(
                "(name: \"test\", devices: [(class: Npu, openvino: \"NPU\", \
                 properties: {{\"NPU_TURBO\": \"{property}\"}})])"
            );
            let soc = heg_spec::Soc::parse(heg_spec::Source {
                file: "test.ron",
                text: &soc,
            });
            let device = &soc.unwrap().devices[0];
            let variant = Variant {
                device: DeviceClass::Npu,
                shape: heg_artifacts::manifest::ShapeClass::Dynamic,
                binding: heg_artifacts::manifest::Binding::Input,
                activations: heg_artifacts::manifest::ElementType::F16,
                kv_cache: None,
                takes_trees: false,
                ir: SectionId::of(ir),
                program: None,
                tolerance: 0.05,
                blobs: Vec::new(),
            };
            cache
                .key(
                    DeviceClass::Npu,
                    device,
                    (&variant, shape),
                    SectionId::of(b"literals"),
                )
                .unwrap()
        };
        let key = |facts, property, ir| key_of(facts, property, ir, ShapeClass::Dynamic);
        let facts = |driver: &str| DeviceFacts {
            role: DeviceClass::Npu,
            name: "NPU".to_owned(),
            full_name: "Intel(R) AI Boost".to_owned(),
            driver: Some(driver.to_owned()),
            npu: None,
            programs: None,
            gpu: None,
            missing: None,
        };
        let first = key(facts("1"), "NO", b"ir");
        assert_eq!(first, key(facts("1"), "NO", b"ir"));
        for other in [
            key(facts("2"), "NO", b"ir"),
            key(facts("1"), "YES", b"ir"),
            key(facts("1"), "NO", b"another"),
            key_of(facts("1"), "NO", b"ir", ShapeClass::Static { tokens: 32 }),
        ] {
            assert_ne!(first, other);
        }
    }
}
