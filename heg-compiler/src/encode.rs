//! Encodes weights into the store, each only once and only if its source has changed.
//!
//! A weight's recipe is its source hash, type, shape and form. Hashes of sources are remembered per file together with
//! the file system's metadata (length, times, inode), as git's index does, so that an unchanged model is not read
//! again.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use heg_artifacts::{FileIdentity, RecipeKey, Section, SectionId, Store};
use heg_files::{TempFile, remove_stale};
use heg_spec::WeightForm;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::CompileError;
use crate::graph::{Param, ParamKind};
use crate::lower::stored_element;
use crate::phase::Progress;
use heg_ingest::{Checkpoint, SourceTensor};
use heg_quant::{AffineRow, Form, StoredAffine, StoredWeight, encode, source_hash};

/// Encodes `params`, in parallel; the result is in the same order.
pub(crate) fn encode_weights(
    checkpoint: &Checkpoint,
    params: &[Param],
    form: WeightForm,
    store: &Store,
    memory: &SourceMemory,
    progress: &dyn Progress,
) -> Result<Vec<StoredWeight>, CompileError> {
    params
        .par_iter()
        .map(|param| {
            let tensor = source(checkpoint, param)?;
            let stored = encode_weight(&tensor, param, form, store, memory)?;
            progress.advance(tensor.stored_bytes());
            Ok(stored)
        })
        .collect()
}

/// Bytes that [`encode_weights`] will report.
pub(crate) fn source_bytes(checkpoint: &Checkpoint, params: &[Param]) -> Result<u64, CompileError> {
    params
        .iter()
        .map(|param| Ok(source(checkpoint, param)?.stored_bytes()))
        .sum()
}

/// The source of a weight: a tensor or a run of its rows, with checked shapes.
fn source<'c>(checkpoint: &'c Checkpoint, param: &Param) -> Result<SourceTensor<'c>, CompileError> {
    let tensor = checkpoint.tensor(&param.source.name)?;
    let shape: Vec<usize> = param.shape.iter().map(|dim| *dim as usize).collect();
    let tensor = match param.source.first_row {
        Some(first) => tensor.rows(first as usize..(first as usize).saturating_add(shape[0]))?,
        None => tensor,
    };
    Ok(tensor.expect_shape(&shape)?)
}

fn encode_weight(
    tensor: &SourceTensor<'_>,
    param: &Param,
    form: WeightForm,
    store: &Store,
    memory: &SourceMemory,
) -> Result<StoredWeight, CompileError> {
    let element = stored_element(param.kind, form);
    let quantised = quant_form(param.kind, form);
    let key = |source: SectionId| {
        RecipeKey::of(
            ENCODER,
            [
                source.to_string(),
                format!("{} {:?} {quantised:?}", tensor.format_name(), param.shape),
            ],
        )
    };
    let name = weight_name(param);
    let known = memory.recall(&name);
    // A file compiled before has probably changed in few places: hashing first finds the rest unchanged.
    let known = known.or_else(|| memory.seen.then(|| SectionId::from(source_hash(tensor))));
    if let Some(source) = known
        && let Some(sections) = store.recall(&key(source))?
        && let [values, rest @ ..] = sections.as_slice()
    {
        memory.record(&name, source);
        return Ok(StoredWeight {
            element,
            values: *values,
            affine: rest.first().map(|scales| StoredAffine {
                scales: *scales,
                centres: rest.get(1).copied(),
            }),
            source,
        });
    }
    let mut rows = Vec::new();
    let mut hash = None;
    let values = store.put(|sink| -> Result<(), CompileError> {
        hash = Some(encode(tensor, quantised, sink, Some(&mut rows))?.source_hash);
        Ok(())
    })?;
    let affine = stored_rows(quantised, &rows, store)?;
    let source = hash.map_or_else(|| SectionId::from(source_hash(tensor)), SectionId::from);
    let of_rows = affine.map(|affine| std::iter::once(affine.scales).chain(affine.centres));
    let sections: Vec<Section> = std::iter::once(values)
        .chain(of_rows.into_iter().flatten())
        .collect();
    store.record(&key(source), &sections)?;
    memory.record(&name, source);
    Ok(StoredWeight {
        element,
        values,
        affine,
        source,
    })
}

/// Puts the scales and centres of a weight into the store.
fn stored_rows(
    form: Form,
    rows: &[AffineRow],
    store: &Store,
) -> Result<Option<StoredAffine>, CompileError> {
    let put = |of_row: fn(&AffineRow) -> f32| {
        let numbers = rows.iter().map(of_row);
        let bytes: Vec<u8> = match form {
            // The numbers were rounded to f16 when they were computed.
            Form::I4(_) | Form::U4(_) => numbers
                .flat_map(|x| half::f16::from_f32(x).to_le_bytes())
                .collect(),
            _ => numbers.flat_map(f32::to_le_bytes).collect(),
        };
        store.put_bytes(&bytes)
    };
    if matches!(form, Form::F32 | Form::F16) {
        return Ok(None);
    }
    let scales = put(|row| row.scale)?;
    let centres = form.is_centred().then(|| put(|row| row.centre));
    Ok(Some(StoredAffine {
        scales,
        centres: centres.transpose()?,
    }))
}

/// A weight's name in the bundle: that of its tensor, with the rows if it is a part of one.
pub(crate) fn weight_name(param: &Param) -> String {
    match param.source.first_row {
        None => param.source.name.clone(),
        Some(first) => format!("{}[{first}..{}]", param.source.name, first + param.shape[0]),
    }
}

/// The encoding of a weight of this kind.
pub(crate) fn quant_form(kind: ParamKind, form: WeightForm) -> Form {
    match (kind, form) {
        (ParamKind::Vector, _) | (_, WeightForm::F32) => Form::F32,
        (_, WeightForm::F16) => Form::F16,
        (ParamKind::Table, WeightForm::W8A16 | WeightForm::W4A16 { .. }) => Form::CentredI8,
        (ParamKind::Matrix, WeightForm::W8A16) => Form::I8,
        (ParamKind::Matrix, WeightForm::W4A16 { group, symmetric }) => match symmetric {
            true => Form::I4(group),
            false => Form::U4(group),
        },
    }
}

/// Identifies the encoders' code: must change whenever the same source gives other bytes.
const ENCODER: &str = "encode 1";

/// The prefix of the names of temporary files.
const PREFIX: &str = "tmp-";

/// Hashes of a model folder's tensors, remembered from an earlier compile.
pub(crate) struct SourceMemory {
    folder: PathBuf,
    path: PathBuf,
    stamp: Vec<FileStamp>,
    /// Whether this folder was compiled before, with whatever content.
    seen: bool,
    hashes: BTreeMap<String, SectionId>,
    current: Mutex<BTreeMap<String, SectionId>>,
}

/// A weight file. Equal stamps mean unchanged content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    path: PathBuf,
    /// `None` if the system does not say: then nothing is remembered.
    identity: Option<FileIdentity>,
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    stamp: Vec<FileStamp>,
    hashes: BTreeMap<String, SectionId>,
}

impl SourceMemory {
    /// Loads the remembered hashes of the checkpoint's files from the store's folder. Unreadable memory is ignored.
    pub(crate) fn load(store: &Path, checkpoint: &Checkpoint) -> Result<Self, CompileError> {
        let stamp = checkpoint
            .files()
            .map(FileStamp::of)
            .collect::<Result<Vec<_>, _>>()?;
        let identity = stamp
            .first()
            .map(|first| first.path.display().to_string())
            .unwrap_or_default();
        let name = SectionId::of(identity.as_bytes()).to_string();
        let folder = store.join("sources");
        let path = folder.join(format!("{name}.ron"));
        let remembered: Option<Remembered> = fs::read_to_string(&path)
            .ok()
            .and_then(|text| ron::from_str(&text).ok());
        let seen = remembered.is_some();
        let hashes = remembered
            .filter(|remembered| remembered.stamp == stamp && stamp.iter().all(FileStamp::is_known))
            .map(|remembered| remembered.hashes)
            .unwrap_or_default();
        Ok(Self {
            folder,
            path,
            stamp,
            seen,
            hashes,
            current: Mutex::default(),
        })
    }

    fn recall(&self, weight: &str) -> Option<SectionId> {
        self.hashes.get(weight).copied()
    }

    fn record(&self, weight: &str, source: SectionId) {
        if let Ok(mut current) = self.current.lock() {
            current.insert(weight.to_owned(), source);
        }
    }

    /// Saves the known hashes for the next compile: at the end, and at the beginning too, so that a compile after an
    /// interrupted one looks for weights that the latter encoded.
    pub(crate) fn save(&self) -> Result<(), CompileError> {
        let mut hashes = self.hashes.clone();
        if let Ok(current) = self.current.lock() {
            hashes.extend(current.clone());
        }
        let remembered = Remembered {
            stamp: self.stamp.clone(),
            hashes,
        };
        let io = |action| {
            let path = self.path.clone();
            move |source| CompileError::Io {
                action,
                path,
                source,
            }
        };
        let text = ron::to_string(&remembered)
            .map_err(|error| io("describe")(std::io::Error::other(error)))?;
        fs::create_dir_all(&self.folder).map_err(io("create"))?;
        remove_stale(&self.folder, PREFIX)?;
        let temp = TempFile::create(&self.folder, PREFIX)?;
        temp.file()
            .write_all(text.as_bytes())
            .map_err(io("write"))?;
        Ok(temp.rename(&self.path)?)
    }
}

impl FileStamp {
    fn is_known(&self) -> bool {
        self.identity.is_some()
    }

    fn of(path: &Path) -> Result<Self, CompileError> {
        let absolute = path.canonicalize().map_err(|source| CompileError::Io {
            action: "resolve",
            path: path.to_owned(),
            source,
        })?;
        let identity = FileIdentity::of_path(&absolute)?;
        Ok(Self {
            path: absolute,
            identity,
        })
    }
}
