//! Known answers: every place of every family against the CPU device, on any number of threads, and the faults that
//! they find.

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{Manifest, Weight};
use heg_spec::{Soc, WeightForm, shipped};
use heg_tests::asked::{Asked, EXACT};
use heg_tests::{FAMILIES, Workbench, fixture, four_bits, openvino_or_skip};

const FORMS: [WeightForm; 5] = [
    WeightForm::F32,
    WeightForm::F16,
    WeightForm::W8A16,
    four_bits(false),
    four_bits(true),
];

fn asked(model: &str, form: WeightForm) -> Asked {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture(model), "asked", |spec| spec.weights = form);
    Asked::new(Bundle::open(compiled.unwrap().0).unwrap()).unwrap()
}

/// Tolerance for sums of f32 in another order; with integer weights keys and values are in bf16 as well, whose last bit
/// is 2⁻⁸.
fn rounding(form: WeightForm) -> f32 {
    match form {
        WeightForm::F32 | WeightForm::F16 => 1e-4,
        WeightForm::W8A16 => 4e-3,
        WeightForm::W4A16 { .. } => 6e-3,
    }
}

#[test]
fn every_place_agrees_with_the_cpu_device() {
    if !openvino_or_skip("every_place_agrees_with_the_cpu_device") {
        return;
    }
    let is_full = std::env::var_os("HEG_FULL").is_some();
    for (number, family) in FAMILIES.into_iter().enumerate() {
        // The first family in all forms, and two forms of each of the others.
        let taken = |at: usize| is_full || number == 0 || (at + number) % FORMS.len() < 2;
        let forms = FORMS.into_iter().enumerate();
        for (_, form) in forms.filter(|(at, _)| taken(*at)) {
            let asked = asked(&format!("golden/{family}"), form);
            for (name, place) in asked.places() {
                for verdict in asked.ask(&place, &EXACT, Some(rounding(form))).unwrap() {
                    assert!(verdict.passes(), "{family}, {form:?}, {name}: {verdict}");
                }
            }
        }
    }
}

/// Returns the properties with which a SoC's only device is opened.
fn properties(soc: &Soc) -> Vec<(&str, &str)> {
    assert_eq!(soc.devices.len(), 1, "devices of `{}`", soc.name);
    let set = soc.devices[0].properties.iter();
    set.map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}

#[test]
fn the_plugin_as_it_runs_stays_within_the_tolerance() {
    if !openvino_or_skip("the_plugin_as_it_runs_stays_within_the_tolerance") {
        return;
    }
    let soc = shipped::soc("host-cpu").unwrap();
    let as_shipped = properties(&soc);
    // With integer weights `host-cpu` leaves attention to the plugin's own precision.
    let mut own_precision = as_shipped.clone();
    own_precision.retain(|(key, _)| *key != "INFERENCE_PRECISION_HINT");
    for form in FORMS {
        let asked = asked("tiny-agent", form);
        for (name, place) in asked.places() {
            let is_integer = !matches!(form, WeightForm::F32 | WeightForm::F16);
            let properties = match is_integer && name.starts_with("mha") {
                true => &own_precision,
                false => &as_shipped,
            };
            for verdict in asked.ask(&place, properties, None).unwrap() {
                assert!(verdict.passes(), "{form:?}, {name}: {verdict}");
            }
        }
    }
}

#[test]
fn threads_change_no_answer() {
    let answers = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let workbench = Workbench::new().unwrap();
        let compile = || workbench.compile(&fixture("tiny-agent"), "threads", |_| {});
        let (bundle, _) = pool.build().unwrap().install(compile).unwrap();
        answers_of(Bundle::open(bundle).unwrap().manifest())
    };
    let alone = answers(1);
    assert!(alone.len() > 3);
    for threads in [2, 7] {
        assert_eq!(answers(threads), alone, "{threads} threads");
    }
}

fn answers_of(manifest: &Manifest) -> Vec<String> {
    let layers = manifest.layers.iter();
    let places = layers.flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    let places = places.chain([&manifest.head]);
    places
        .map(|place| place.answer.unwrap().to_string())
        .collect()
}

/// A change to the first matrix of a place, in memory, past every hash.
type Damage = fn(&Asked, &Weight);

fn double_a_scale(asked: &Asked, weight: &Weight) {
    let scales = asked.bundle().section(weight.scales.unwrap()).unwrap();
    let scale = f32::from_le_bytes(scales[..4].try_into().unwrap());
    let doubled = (2.0 * scale).to_le_bytes();
    asked.damage(weight.scales.unwrap(), 0, &doubled).unwrap();
}

fn negate_a_row(asked: &Asked, weight: &Weight) {
    let row = &asked.bundle().section(weight.values).unwrap()[..weight.shape[1] as usize];
    let negated: Vec<u8> = row.iter().map(|byte| byte.wrapping_neg()).collect();
    asked.damage(weight.values, 0, &negated).unwrap();
}

fn lose_a_page(asked: &Asked, weight: &Weight) {
    asked.damage(weight.values, 0, &[0; 4096]).unwrap();
}

fn lose_all_scales(asked: &Asked, weight: &Weight) {
    let ones: Vec<u8> = (0..weight.shape[0])
        .flat_map(|_| 1.0_f32.to_le_bytes())
        .collect();
    asked.damage(weight.scales.unwrap(), 0, &ones).unwrap();
}

#[test]
fn damaged_weights_are_found_out() {
    if !openvino_or_skip("damaged_weights_are_found_out") {
        return;
    }
    let damages: [(&str, Damage); 4] = [
        ("a doubled scale", double_a_scale),
        ("a negated row", negate_a_row),
        ("a page of zeros", lose_a_page),
        ("scales of one", lose_all_scales),
    ];
    let soc = shipped::soc("host-cpu").unwrap();
    for (damage, spoil) in damages {
        let asked = asked("tiny-agent", WeightForm::W8A16);
        let manifest = asked.bundle().manifest();
        let places = [&manifest.layers[0].qkv, &manifest.layers[0].ffn];
        for place in places {
            let mut weights = place
                .weights
                .iter()
                .map(|id| &manifest.weights[id.0 as usize]);
            let matrix = weights.find(|weight| weight.scales.is_some()).unwrap();
            spoil(&asked, matrix);
            let verdicts = asked.ask(place, &properties(&soc), None).unwrap();
            let name = &matrix.name;
            let found_out = verdicts.iter().any(|verdict| !verdict.passes());
            let shown: Vec<String> = verdicts.iter().map(ToString::to_string).collect();
            assert!(found_out, "{damage} of `{name}`: {shown:?}");
        }
    }
}
