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
        let beside = Beside {
            history: &self.history,
            taught: &self.taught,
            forced,
        };
        drafter.draft(shape, 8, &beside)
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
    let mut drafter = Drafter::new(&[1]);
    drafter.expect(&[10, 11, 12, 13, 14, 15]);
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
    let mut reaches = Vec::new();
    for at in 0..40 {
        for token in [1, 2] {
            drafter.push(token, &bench.history);
        }
        let beside = Beside {
            history: &bench.history,
            taught: &bench.taught,
            forced: &[],
        };
        let draft = drafter.draft(Shape::Chain, 8, &beside);
        reaches.push(draft.tokens().first().map_or(0.0, |first| first.reach));
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
        reaches[39] < 0.1 && reaches[39] < reaches[0] / 2.0,
        "{reaches:?}"
    );
}

/// Each source alone, in a context where it has something to say.
#[test]
fn a_mechanism_that_is_off_drafts_nothing() {
    let mut bench = Bench::new();
    bench.history.add(&[], &[1, 2, 50, 51]);
    let off = DraftPolicy {
        context: false,
        history: false,
        prediction: false,
        grammar: false,
        ..DraftPolicy::default()
    };
    let drafted = |policy: DraftPolicy| {
        let mut drafter = Drafter::new(&[1, 2, 30, 31, 9, 1]).under(policy);
        drafter.expect(&[2, 40, 41]);
        drafter.calibrate(&[1, 2, 60], Arc::from([Likely::new([(2, 1.0)]); 2]));
        drafter.push(2, &bench.history);
        tokens(&bench.draft(&drafter, Shape::Chain, &[70]))
    };
    assert_eq!(drafted(off), [0; 0]);
    let on = [
        (
            DraftPolicy {
                context: true,
                ..off
            },
            30,
        ),
        (
            DraftPolicy {
                history: true,
                ..off
            },
            50,
        ),
        (
            DraftPolicy {
                prediction: true,
                ..off
            },
            40,
        ),
        (
            DraftPolicy {
                grammar: true,
                ..off
            },
            70,
        ),
        (
            DraftPolicy {
                calibration: true,
                ..off
            },
            2,
        ),
    ];
    for (policy, first) in on {
        assert_eq!(drafted(policy)[0], first, "{policy:?}");
    }
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
    let last = DraftPolicy {
        frequencies: false,
        ..DraftPolicy::default()
    };
    assert_eq!(drafted(last), 6);
}

/// A word of the prompt is left out: the tokens behind it are drafted again, though nothing that was read goes on so.
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
    let reuse = DraftPolicy {
        reuse: true,
        ..DraftPolicy::default()
    };
    assert_eq!(again(reuse, &mut bench), [5, 6]);
}

proptest! {
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
        let beside = Beside { history: &history, taught: &taught, forced: &[] };
        let shape = if is_tree { Shape::Tree } else { Shape::Chain };
        let draft = drafter.draft(shape, tokens_max, &beside);
        prop_assert!(draft.len() <= tokens_max);
        for (at, drafted) in draft.tokens().iter().enumerate() {
            let parent = drafted.parent.map(usize::from);
            prop_assert!(parent.is_none_or(|parent| parent < at));
            prop_assert!(is_tree || parent == at.checked_sub(1));
            let before = parent.map_or(1.0, |parent| draft.tokens()[parent].reach);
            prop_assert!(drafted.reach <= before && drafted.reach >= 0.0);
            prop_assert_eq!(draft.child(drafted.parent, drafted.token), Some(at as u16));
        }
        // Drafts do not change what they are made from.
        prop_assert_eq!(&draft, &drafter.draft(shape, tokens_max, &beside));
    }
}
