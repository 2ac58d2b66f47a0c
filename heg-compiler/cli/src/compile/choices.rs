//! Options of the command line with a fixed list of values, each with its name and its help.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use heg_compiler::{Emit, NpuBlobs};
use heg_spec::{GroupColumns, KvForm, WeightForm};

/// A choice of the command line: its value, its name, and its help.
pub(super) type Choice<T> = (T, &'static str, &'static str);

/// Values of `--weights`.
pub(super) const WEIGHT_FORMS: [Choice<WeightForm>; 5] = [
    (
        WeightForm::F32,
        "f32",
        "Unquantised, 32-bit floats: for comparing numbers",
    ),
    (WeightForm::F16, "f16", "Unquantised, 16-bit floats"),
    (
        WeightForm::W8A16,
        "w8a16",
        "8-bit integers with one scale per row; the SoC says what activations are rounded to",
    ),
    (
        in_groups(false),
        "w4a16",
        "4-bit integers with scale and centre per group of columns; activations likewise",
    ),
    (
        in_groups(true),
        "w4a16-symmetric",
        "As w4a16, without centres: fewer bytes and less exact",
    ),
];

const fn in_groups(symmetric: bool) -> WeightForm {
    WeightForm::W4A16 {
        group: GroupColumns::SMALLEST,
        symmetric,
    }
}

/// Values of `--kv`.
pub(super) const KV_FORMS: [Choice<KvForm>; 2] = [
    (KvForm::Bf16, "bf16", "16-bit floats"),
    (
        KvForm::I8,
        "i8",
        "8-bit integers with scales: about half the memory; CPU programs alone run such bundles",
    ),
];

/// Values of `--npu`.
pub(super) const NPU_BLOBS: [Choice<NpuBlobs>; 3] = [
    (
        NpuBlobs::WherePossible,
        "auto",
        "Leave the blob out and say so; the device then compiles the kernel itself",
    ),
    (NpuBlobs::Required, "require", "Fail"),
    (NpuBlobs::Off, "off", "Make no blobs at all"),
];

/// Values of `--emit`.
pub(super) const PASSES: [Choice<Emit>; 7] = [
    (
        Emit::Graph,
        "graph",
        "Operators of every layer and of the head, with shapes and weights",
    ),
    (
        Emit::Heg,
        "heg",
        "Distinct kernels with their ports, and what flows between their places",
    ),
    (
        Emit::Plan,
        "plan",
        "Variants of each kernel, weights as they will be stored, and what each layer uses",
    ),
    (
        Emit::Programs,
        "programs",
        "CPU program of each kernel, a line for each buffer that a step writes",
    ),
    (
        Emit::Ir,
        "ir",
        "OpenVINO IR of every variant, a line for each layer",
    ),
    (
        Emit::Orders,
        "orders",
        "Both orders of the operands of each product, by the NPU compiler's estimates",
    ),
    (
        Emit::Cuts,
        "cuts",
        "NPU blobs of the cuts of each --partition, chosen by the same estimates",
    ),
];

/// Returns a parser of these values.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let values = choices
        .iter()
        .map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(values).try_map(|found| {
        let choice = choices.iter().find(|(_, name, _)| *name == found);
        choice.map(|(value, ..)| *value).ok_or("no such choice")
    })
}
