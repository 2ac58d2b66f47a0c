//! Answers that clients predict: rightly, with a wrong token, or as something quite different.

use heg_runtime::engine::{Request, Speculation};
use heg_spec::{WeightForm, shipped};

use super::{Subject, answer, request};

#[test]
fn predictions_change_no_answer() {
    let subject = Subject::tiny_agent(WeightForm::F32);
    let plain = subject.engine(Speculation::Off);
    let vocab = plain.manifest().model.vocab;
    for speculation in [Speculation::Chain, Speculation::Tree] {
        let mut policy = shipped::policy("agent-xpu-one-device").unwrap();
        // However long rows take here.
        policy.drafts.fixed_tokens = Some(12);
        let (drafting, _) = subject.engine_under(policy, speculation, None);
        let (mut steps, mut accepted) = (0, 0);
        for (at, prompt) in subject.prompts.iter().take(8).enumerate() {
            let (expected, _) = answer(plain.generate(request(at, prompt)));
            let predicted = |prediction: Vec<u32>| {
                let (tokens, ending) = answer(drafting.generate(Request {
                    prediction,
                    ..request(at, prompt)
                }));
                assert_eq!(tokens, expected, "{speculation:?}, prompt {at}");
                ending.drafts.unwrap()
            };
            let right = predicted(expected.clone());
            (steps, accepted) = (steps + right.steps, accepted + right.accepted_tokens);
            for wrong in 0..expected.len() {
                let mut prediction = expected.clone();
                prediction[wrong] = [vocab - 1, vocab, u32::MAX, 0][wrong % 4];
                predicted(prediction);
            }
            predicted(expected.iter().rev().copied().collect());
            predicted(vec![expected[0]; 300]);
            predicted((0..vocab + 10).collect());
        }
        // Right ones save steps.
        let gained = format!("{speculation:?}: {accepted} tokens accepted in {steps} steps");
        assert!(2 * accepted > steps, "{gained}");
    }
}
