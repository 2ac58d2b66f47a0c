//! Automata against searches of their texts.

use proptest::prelude::*;

use super::*;

fn automaton_of(texts: &[Vec<u32>]) -> Automaton {
    let mut automaton = Automaton::default();
    for text in texts {
        for token in text {
            automaton.push(*token);
        }
        automaton.end_text();
    }
    automaton
}

/// Occurrences and continuations of a run, by brute force.
fn occurrences(texts: &[Vec<u32>], run: &[u32]) -> (u32, HashMap<u32, u32>) {
    let mut after = HashMap::new();
    let mut count = 0;
    for text in texts {
        for end in run.len()..=text.len() {
            if text[end - run.len()..end] == *run {
                count += 1;
                if let Some(next) = text.get(end) {
                    *after.entry(*next).or_default() += 1;
                }
            }
        }
    }
    (count, after)
}

fn texts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0..4_u32, 0..40), 1..4)
}

proptest! {
    #[test]
    fn matches_counts_and_continuations_are_those_of_a_search(
        texts in texts(),
        read in prop::collection::vec(0..4_u32, 1..40),
    ) {
        let automaton = automaton_of(&texts);
        let mut at = Match::NONE;
        for end in 1..=read.len() {
            at = automaton.advance(at, read[end - 1]);
            let longest = (0..=end).find(|from| occurrences(&texts, &read[*from..end]).0 > 0);
            prop_assert_eq!(at.length as usize, end - longest.unwrap_or(end));
            if at.length == 0 {
                continue;
            }
            let run = &read[end - at.length as usize..end];
            let (count, after) = occurrences(&texts, run);
            prop_assert_eq!(automaton.count(at), count);
            let found: HashMap<u32, u32> =
                automaton.continuations(at).map(|next| (next.token, next.count)).collect();
            // A continuation is counted in its own state, whose runs may all begin earlier.
            for (token, count) in &after {
                prop_assert_eq!(found.get(token), Some(count));
            }
            prop_assert_eq!(found.len(), after.len());
        }
    }

    #[test]
    fn the_repeated_suffix_is_the_longest(text in prop::collection::vec(0..3_u32, 1..60)) {
        let mut automaton = Automaton::default();
        for (end, token) in text.iter().enumerate() {
            automaton.push(*token);
            let so_far = &text[..=end];
            let repeats = |length: &usize| {
                let suffix = &so_far[so_far.len() - length..];
                so_far[..so_far.len() - 1].windows(*length).any(|run| run == suffix)
            };
            let longest = (1..so_far.len()).rev().find(repeats).unwrap_or(0);
            prop_assert_eq!(automaton.repeated().length as usize, longest);
        }
    }

    #[test]
    fn a_match_stays_good_while_the_text_grows(
        text in prop::collection::vec(0..3_u32, 2..60),
        cut in 1..30_usize,
        more in prop::collection::vec(0..3_u32, 1..20),
    ) {
        let cut = cut.min(text.len());
        let mut automaton = automaton_of(&[text[..cut].to_vec()]);
        let mut at = Match::NONE;
        for token in &more {
            at = automaton.advance(at, *token);
        }
        for token in &text[cut..] {
            automaton.push(*token);
        }
        automaton.end_text();
        let texts = [text[..cut].to_vec(), text[cut..].to_vec()];
        let run = &more[more.len() - at.length as usize..];
        if !run.is_empty() {
            prop_assert_eq!(automaton.count(at), occurrences(&texts, run).0);
        }
    }
}

#[test]
fn one_token_over_and_over_takes_no_longer_for_it() {
    let mut automaton = Automaton::default();
    for _ in 0..100_000 {
        automaton.push(7);
    }
    assert_eq!(automaton.repeated().length, 99_999);
}

#[test]
fn what_is_no_token_ends_the_text() {
    let mut automaton = Automaton::default();
    for token in [1, 2, u32::MAX, 1] {
        automaton.push(token);
    }
    let after: Vec<u32> = automaton
        .continuations(automaton.advance(Match::NONE, 1))
        .map(|next| next.token)
        .collect();
    assert_eq!(after, [2]);
}

/// A token that is followed by a new one each time, and sometimes preceded by others: its state has many edges and is
/// split.
fn hub(tokens: u32) -> Vec<u32> {
    (0..tokens)
        .flat_map(|at| match at % 3 {
            0 => vec![1, 2 + at],
            1 => vec![0, 1, 2 + at],
            _ => vec![5000 + at, 0, 1, 2 + at],
        })
        .collect()
}

#[test]
fn more_edges_than_are_listed_are_found() {
    let text = hub(400);
    let automaton = automaton_of(std::slice::from_ref(&text));
    for run in [&[1][..], &[0, 1]] {
        let at = run
            .iter()
            .fold(Match::NONE, |at, token| automaton.advance(at, *token));
        assert_eq!(at.length as usize, run.len());
        let (count, after) = occurrences(std::slice::from_ref(&text), run);
        assert_eq!(automaton.count(at), count);
        for token in after.keys() {
            let next = automaton.advance(at, *token);
            let length = run.len() as u32 + 1;
            assert_eq!(next.length, length, "{run:?}, then {token}");
        }
        // Too many for a prediction.
        assert_eq!(automaton.continuations(at).count(), 0);
    }
}

#[test]
fn one_that_shares_a_text_goes_on_as_one_that_does_not() {
    let text = hub(150);
    let mut flat = Automaton::default();
    text.iter().for_each(|token| flat.push(*token));
    let mut shared = flat.clone();
    shared.share();
    let (bytes, mut clones) = (shared.bytes(), vec![shared.clone(); 3]);
    assert!(bytes <= flat.bytes());
    for clone in &clones {
        assert!(clone.own_bytes() < 100, "{}", clone.own_bytes());
    }
    // Each continues differently, through edges and splits that the shared text does not have.
    for (at, clone) in (1..).zip(&mut clones) {
        let mut flat = flat.clone();
        let more: Vec<u32> = hub(90).iter().map(|token| token * at % 5200).collect();
        for token in more {
            clone.push(token);
            flat.push(token);
            assert_eq!(clone.repeated(), flat.repeated());
            let next = |one: &Automaton| -> Vec<Continuation> {
                one.continuations(one.repeated()).collect()
            };
            assert_eq!(next(clone), next(&flat));
            assert_eq!(
                clone.advance(Match::NONE, token),
                flat.advance(Match::NONE, token)
            );
        }
        assert!(clone.own_bytes() < flat.bytes());
    }
    assert_eq!(shared.repeated(), flat.repeated());
}

/// Fastest of three runs.
fn time_of(text: &[u32]) -> std::time::Duration {
    let tries = (0..3).map(|_| {
        let begin = std::time::Instant::now();
        let mut automaton = Automaton::default();
        text.iter().for_each(|token| automaton.push(*token));
        std::hint::black_box(&automaton);
        begin.elapsed()
    });
    tries.min().unwrap_or_default()
}

/// A linear search of the first token's edges once made this 26 times as slow as other prompts.
#[test]
fn a_prompt_of_one_token_before_ever_new_ones_takes_no_longer() {
    let hostile: Vec<u32> = (0..65_536).flat_map(|at| [1, 2 + at]).collect();
    let benign: Vec<u32> = (0..131_072_u64)
        .map(|at| (at * at * 7919 % 49_000) as u32)
        .collect();
    let (hostile, benign) = (time_of(&hostile), time_of(&benign));
    assert!(hostile < 8 * benign, "{hostile:?}, others {benign:?}");
}
