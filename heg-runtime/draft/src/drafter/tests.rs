//! Drafts as a request makes them: from its context, earlier answers, predictions and grammars.

use proptest::prelude::*;

use super::*;

struct Bench {
    history: History,
    taught: Acceptance,
}

impl Bench {
    fn new() -> Self {
        Self {
            history: History::new(10_000),
            taught: Acceptance::default(),
        }
    }

    fn draft(&self, drafter: &Drafter, shape: Shape, forced: &[u32]) -> Draft {
        let sources = DraftSources {
            history: &self.history,
            taught: &self.taught,
            forced,
        };
        drafter.draft(shape, 8, &sources)
    }
}

fn tokens(draft: &Draft) -> Vec<u32> {
    draft.tokens().iter().map(|drafted| drafted.token).collect()
}

#[test]
fn what_came_before_is_drafted() {
    let bench = Bench::new();
    let mut drafter = Drafter::new(&[1, 2, 3, 4, 5, 9, 9, 1]);
    drafter.push(2, &bench.history);
    assert_eq!(
        tokens(&bench.draft(&drafter, Shape::Chain, &[]))[..3],
        [3, 4, 5]
    );
}

#[test]
fn the_longer_match_of_an_earlier_answer_wins() {
    let mut bench = Bench::new();
    bench
        .history
        .add(&[], &[7, 8, 1, 2, 60, 61, 62, 63, 64, 65]);
    let mut drafter = Drafter::new(&[1, 2, 3, 4, 5, 7, 8, 1]);
    drafter.push(2, &bench.history);
    assert_eq!(
        tokens(&bench.draft(&drafter, Shape::Chain, &[]))[..2],
        [60, 61]
    );
}

#[test]
fn a_tree_has_what_either_source_says() {
    let mut bench = Bench::new();
    bench.history.add(&[], &[8, 1, 2, 60, 61]);
    let mut drafter = Drafter::new(&[8, 1, 2, 3, 4, 5, 8, 1]);
    drafter.push(2, &bench.history);
    let draft = bench.draft(&drafter, Shape::Tree, &[]);
    let first: Vec<u32> = draft.children(None).map(|drafted| drafted.token).collect();
    assert!(first.contains(&3) && first.contains(&60), "{draft:?}");
}

#[test]
fn what_a_grammar_forces_comes_first() {
    let bench = Bench::new();
    let mut drafter = Drafter::new(&[1, 2, 3, 1]);
    drafter.push(2, &bench.history);
    let draft = bench.draft(&drafter, Shape::Chain, &[30, 31, 32]);
    assert_eq!(tokens(&draft), [30, 31, 32]);
}

#[test]
fn a_predicted_answer_is_drafted_until_it_is_wrong_and_found_again() {
    let bench = Bench::new();
    let mut drafter = Drafter::of(RequestTexts::new(&[1], &[10, 11, 12, 13, 14, 15]));
    drafter.push(10, &bench.history);
    assert_eq!(
        tokens(&bench.draft(&drafter, Shape::Chain, &[])),
        [11, 12, 13, 14, 15]
    );
    drafter.push(99, &bench.history);
    assert!(bench.draft(&drafter, Shape::Chain, &[]).is_empty());
    drafter.push(12, &bench.history);
    assert_eq!(
        tokens(&bench.draft(&drafter, Shape::Chain, &[])),
        [13, 14, 15]
    );
}

#[test]
fn wrong_drafts_become_unlikely() {
    let mut bench = Bench::new();
    let text: Vec<u32> = (0..40).flat_map(|at| [1, 2, 100 + at]).collect();
    let mut drafter = Drafter::new(&text);
    let mut probabilities = Vec::new();
    for at in 0..40 {
        for token in [1, 2] {
            drafter.push(token, &bench.history);
        }
        let sources = DraftSources {
            history: &bench.history,
            taught: &bench.taught,
            forced: &[],
        };
        let draft = drafter.draft(Shape::Chain, 8, &sources);
        probabilities.push(
            draft
                .tokens()
                .first()
                .map_or(0.0, |first| first.path_probability),
        );
        let token = 500 + at;
        let verified = Verified {
            draft: &draft,
            given: &[token],
            likeliest: &[],
        };
        drafter.verified(verified, &mut bench.taught);
        drafter.push(token, &bench.history);
    }
    assert!(
        probabilities[39] < 0.1 && probabilities[39] < probabilities[0] / 2.0,
        "{probabilities:?}"
    );
}

/// Each source alone, in a context where it has something to say.
#[test]
fn a_source_that_is_off_drafts_nothing() {
    let mut bench = Bench::new();
    bench.history.add(&[], &[1, 2, 50, 51]);
    let off = DraftPolicy {
        context: false,
        history: false,
        calibration: false,
        ..papers()
    };
    let drafted = |switch: fn(&mut DraftPolicy)| {
        let mut policy = off;
        switch(&mut policy);
        let texts = RequestTexts::new(&[1, 2, 30, 31, 9, 1], &[2, 40, 41]);
        let mut drafter = Drafter::of(texts).under(policy);
        drafter.calibrate(&[1, 2, 60], Arc::from([Likely::new([(2, 1.0)]); 2]));
        drafter.push(2, &bench.history);
        let all = tokens(&bench.draft(&drafter, Shape::Chain, &[70]));
        all.first().copied()
    };
    assert_eq!(drafted(|_| {}), None);
    assert_eq!(drafted(|it| it.context = true), Some(30));
    assert_eq!(drafted(|it| it.history = true), Some(50));
    assert_eq!(drafted(|it| it.prediction = true), Some(40));
    assert_eq!(drafted(|it| it.grammar = true), Some(70));
    assert_eq!(drafted(|it| it.calibration = true), Some(2));
}

/// Returns the drafts of sd.npu's policy: from texts and calibrated prompts alone.
fn papers() -> DraftPolicy {
    heg_spec::shipped::policy("sd-npu").unwrap().drafts
}

/// A request's wrong drafts make those of the client's next one less likely, unless the policy learns
/// nothing.
#[test]
fn without_learning_drafts_are_as_likely_as_before() {
    let expected = |policy: DraftPolicy| {
        let mut bench = Bench::new();
        [(); 2].map(|()| {
            let mut drafter = Drafter::new(&[1, 2, 3, 4, 9, 1]).under(policy);
            drafter.push(2, &bench.history);
            let draft = bench.draft(&drafter, Shape::Chain, &[]);
            for _ in 0..20 {
                let verified = Verified {
                    draft: &draft,
                    given: &[77],
                    likeliest: &[],
                };
                drafter.verified(verified, &mut bench.taught);
            }
            draft.expected_tokens()
        })
    };
    let [first, second] = expected(DraftPolicy::default());
    assert!(second < first, "{second} {first}");
    let [first, second] = expected(papers());
    assert_eq!(first, second);
}

#[test]
fn without_frequencies_what_came_last_goes_first() {
    let bench = Bench::new();
    let drafted = |policy: DraftPolicy| {
        let context = [1, 2, 5, 1, 2, 5, 1, 2, 5, 1, 2, 6, 1];
        let mut drafter = Drafter::new(&context).under(policy);
        drafter.push(2, &bench.history);
        bench.draft(&drafter, Shape::Chain, &[]).tokens()[0].token
    };
    assert_eq!(drafted(DraftPolicy::default()), 5);
    assert_eq!(drafted(papers()), 6);
}

/// The answer leaves a word of the prompt out: the tokens behind it are drafted again, though no earlier text continues
/// like this.
#[test]
fn the_rest_of_a_rejected_draft_is_drafted_again() {
    let mut bench = Bench::new();
    let again = |policy: DraftPolicy, bench: &mut Bench| {
        let context = [1, 2, 3, 4, 5, 6, 9, 1];
        let mut drafter = Drafter::new(&context).under(policy);
        drafter.push(2, &bench.history);
        let draft = bench.draft(&drafter, Shape::Chain, &[]);
        assert_eq!(tokens(&draft)[..4], [3, 4, 5, 6]);
        let verified = Verified {
            draft: &draft,
            given: &[77],
            likeliest: &[false, false, true, true, false, false, false, false],
        };
        drafter.verified(verified, &mut bench.taught);
        drafter.push(77, &bench.history);
        tokens(&bench.draft(&drafter, Shape::Chain, &[]))
    };
    assert_eq!(again(DraftPolicy::default(), &mut bench), [0; 0]);
    assert_eq!(again(papers(), &mut bench), [5, 6]);
}

/// The client's history is dropped while its request runs, and its next answers begin another.
#[test]
fn a_reader_outlives_the_history_that_it_read() {
    let mut bench = Bench::new();
    bench.history.add(&[], &(0..1000).collect::<Vec<_>>());
    let mut drafter = Drafter::new(&[1]);
    for token in 500..600 {
        drafter.push(token, &bench.history);
    }
    assert_eq!(
        tokens(&bench.draft(&drafter, Shape::Chain, &[]))[0],
        600,
        "the history is read"
    );
    bench.history = History::new(10_000);
    bench.history.add(&[], &[7, 8]);
    assert!(bench.draft(&drafter, Shape::Chain, &[]).is_empty());
    drafter.push(7, &bench.history);
    assert_eq!(tokens(&bench.draft(&drafter, Shape::Chain, &[])), [8]);
}

proptest! {
    /// Answers that share a prompt are drafted like single ones.
    #[test]
    fn answers_that_share_a_prompt_are_drafted_as_each_alone(
        prompt in prop::collection::vec(0..6_u32, 1..100),
        prediction in prop::collection::vec(0..6_u32, 0..10),
        answers in prop::collection::vec(prop::collection::vec(0..6_u32, 1..40), 2..4),
    ) {
        let bench = Bench::new();
        let shared = RequestTexts::new(&prompt, &prediction).shared();
        let mut together: Vec<Drafter> =
            answers.iter().map(|_| Drafter::of(shared.clone())).collect();
        let mut alone: Vec<Drafter> = answers
            .iter()
            .map(|_| Drafter::of(RequestTexts::new(&prompt, &prediction)))
            .collect();
        for at in 0..40 {
            for (answer, (one, other)) in answers.iter().zip(together.iter_mut().zip(&mut alone)) {
                let Some(token) = answer.get(at) else { continue };
                one.push(*token, &bench.history);
                other.push(*token, &bench.history);
                for shape in [Shape::Chain, Shape::Tree] {
                    prop_assert_eq!(
                        bench.draft(one, shape, &[]),
                        bench.draft(other, shape, &[])
                    );
                }
            }
        }
    }

    #[test]
    fn drafts_are_trees_of_at_most_so_many_tokens_and_their_reach_only_falls(
        context in prop::collection::vec(0..5_u32, 1..80),
        answers in prop::collection::vec(prop::collection::vec(0..5_u32, 1..20), 0..4),
        tokens_max in 0..33_usize,
        likely in prop::collection::vec(prop::collection::vec((0..5_u32, 0.0..1.0), 0..5), 0..80),
        is_tree in any::<bool>(),
    ) {
        let mut history = History::new(1000);
        for answer in &answers {
            history.add(&context, answer);
        }
        let (last, before) = context.split_last().unwrap();
        let mut drafter = Drafter::new(before).under(DraftPolicy {
            calibration: true,
            ..DraftPolicy::default()
        });
        drafter.calibrate(before, likely.into_iter().map(Likely::new).collect());
        drafter.push(*last, &history);
        let taught = Acceptance::default();
        let sources = DraftSources { history: &history, taught: &taught, forced: &[] };
        let shape = if is_tree { Shape::Tree } else { Shape::Chain };
        let draft = drafter.draft(shape, tokens_max, &sources);
        prop_assert!(draft.len() <= tokens_max);
        for (at, drafted) in draft.tokens().iter().enumerate() {
            let parent = drafted.parent.map(usize::from);
            prop_assert!(parent.is_none_or(|parent| parent < at));
            prop_assert!(is_tree || parent == at.checked_sub(1));
            let before = parent.map_or(1.0, |parent| draft.tokens()[parent].path_probability);
            prop_assert!(drafted.path_probability <= before && drafted.path_probability >= 0.0);
            prop_assert_eq!(draft.child(drafted.parent, drafted.token), Some(at as u16));
        }
        // Drafting changes no state.
        prop_assert_eq!(&draft, &drafter.draft(shape, tokens_max, &sources));
    }
}
