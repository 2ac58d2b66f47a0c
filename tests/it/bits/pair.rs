//! Tests of a real model on two devices that share every product, at lengths that do not divide evenly.

use heg_runtime::exec::{Executor, ExecutorOptions, PairLanes};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{Activations, GroupColumns, WeightForm, shipped};
use heg_tests::Seeded;
use heg_tests::roles::loader;

use super::{PLAIN, SMOLLM2_VOCAB, answers, answers_of, bits_of, count, smollm2_as};

/// Lengths of prompts, those of an ordinary test run first.
const LENGTHS: [usize; 9] = [33, 135, 1, 31, 32, 300, 525, 600, 1000];

#[test]
fn smollm2_says_the_same_on_two_devices() {
    let mut noise = Seeded::new(11);
    let mut prompt = |length| {
        let tokens = (0..length).map(|_| noise.below(SMOLLM2_VOCAB) as u32);
        tokens.collect()
    };
    let lengths = LENGTHS.into_iter().take(count(LENGTHS.len(), 2));
    let prompts: Vec<Vec<u32>> = lengths.map(&mut prompt).collect();
    let group = GroupColumns::SMALLEST;
    let in_groups = WeightForm::W4A16 {
        group,
        symmetric: false,
    };
    for form in [WeightForm::W8A16, in_groups] {
        let Some((_workbench, bundle)) = smollm2_as(form) else {
            return;
        };
        let expected = answers(&bundle, &prompts, 3, (PLAIN, Activations::I8, bits_of));
        for level in [PairLevel::Tensor, PairLevel::Layer] {
            let pairing = Pairing {
                level,
                synchronisation: Synchronisation::Fast,
            };
            let soc = shipped::soc("host-pair").unwrap();
            let loader = loader(&bundle, &soc).paired(pairing, PairLanes::One);
            let mut both = Executor::new(loader.unwrap(), ExecutorOptions::default()).unwrap();
            let found = answers_of(&mut both, &prompts, 3, bits_of);
            assert!(found == expected, "{form:?}, {level:?}");
        }
    }
}
