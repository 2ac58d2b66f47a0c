//! Verdicts of lines on two figures.

use super::*;

#[test]
fn verdicts_say_how_far_both_are_apart() {
    let line = |unit, better, paper, ours: f64| {
        PaperLine::of_samples("x".to_owned(), unit, better, paper, &[ours, ours])
    };
    let less = line(Unit::Secs, Better::Less, 0.1, 0.25);
    assert_eq!(less.verdict(), "**missed** by 0.150 s");
    assert_eq!(less.show(), "0.250 s ± 0.000 s");
    let more = line(Unit::Percent, Better::More, 19.0, 16.0);
    assert_eq!(more.clone().bounded(20.0).verdict(), "yes");
    let far = line(Unit::Percent, Better::More, 92.0, 57.0);
    assert_eq!(
        far.clone().bounded(93.0).verdict(),
        "**missed** by 35.0 points"
    );
    let far = far.bounded(59.0);
    assert_eq!(far.verdict(), "missed by 35.0 points; no scheduler could");
    assert!(!far.reached);
    // A missing figure is not good.
    assert!(!line(Unit::Secs, Better::Less, 0.1, f64::NAN).reached);
}

#[test]
fn what_is_beyond_the_papers_needs_a_reason() {
    let line = |ours: f64| {
        PaperLine::compared("x".to_owned(), Unit::Times, Better::More, [2.0, ours])
            .missed_since("slow")
            .better_since("fast")
    };
    assert_eq!(
        (line(2.1).verdict(), line(2.1).note),
        ("yes".to_owned(), None)
    );
    assert_eq!(line(3.0).verdict(), "better by 1.00×");
    assert_eq!(line(3.0).note.as_deref(), Some("fast"));
    assert_eq!(line(1.0).note.as_deref(), Some("slow"));
    let unexplained = PaperLine::compared("x", Unit::Times, Better::More, [2.0, 3.0]);
    assert_eq!(unexplained.verdict(), "beyond it by 1.00×");
    assert!(!unexplained.reached);
    // Of 96% at most 2 points.
    let near = PaperLine::compared("x", Unit::Percent, Better::More, [96.0, 93.0]);
    assert!(!near.reached);
}

#[test]
fn both_ends_of_a_range_have_to_agree() {
    let line = |ours: &[f64]| {
        let line = PaperLine::gain("x".to_owned(), [1.1, 2.0], ours, Origin::Simulated);
        line.missed_since("because")
    };
    assert!(line(&[1.9, 1.2]).reached);
    assert_eq!(line(&[1.9, 1.2]).note, None);
    assert_eq!(line(&[1.9, 1.2]).show(), "1.20–1.90×");
    assert_eq!(line(&[2.5, 1.2]).outcome, Outcome::Beyond);
    assert!(!line(&[1.5, 1.2]).reached);
    assert_eq!(line(&[0.5, 2.0]).note.as_deref(), Some("because"));
    assert!(!line(&[]).reached);
}

#[test]
fn only_lines_of_their_own_are_counted() {
    let line = PaperLine::compared("x", Unit::Times, Better::More, [2.0, 2.0]);
    let lines = [
        line.clone(),
        line.clone().standing(Standing::Repeats),
        line.standing(Standing::Fitted),
    ];
    let text = count(&lines);
    assert!(text.starts_with("Of the paper's 1 lines that count 1 are reached"));
    assert!(text.contains("1 repeat another by a fixed ratio, 0 are inputs, 1 were fitted"));
}
