//! Tests with answers to prompts of both kinds, whole and cut at every place.

use proptest::prelude::*;

use super::super::tokenizer::tests::tiny_agent;
use super::super::{Conversation, Message, Special};
use super::*;

const TAGGED: ThoughtSyntax = ThoughtSyntax::Tagged;

/// Returns thought and text of an answer that arrives in these pieces.
fn split<'a>(
    syntax: ThoughtSyntax,
    prompt: &str,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, String) {
    let mut parser = ThoughtParser::new(syntax, prompt);
    let (mut thought, mut text) = (String::new(), String::new());
    let mut add = |split: ThoughtSplit| {
        assert!(text.is_empty() || split.thought.is_empty(), "{split:?}");
        thought.push_str(&split.thought);
        text.push_str(&split.text);
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    add(parser.finish());
    (thought, text)
}

/// Checks an answer at once, letter by letter, and in two pieces cut anywhere.
fn check(prompt: &str, answer: &str, thought: &str, text: &str) {
    let expected = (thought.to_owned(), text.to_owned());
    assert_eq!(split(TAGGED, prompt, [answer]), expected, "{answer}");
    let letters: Vec<String> = answer.chars().map(String::from).collect();
    let found = split(TAGGED, prompt, letters.iter().map(String::as_str));
    assert_eq!(found, expected, "{answer}, letter by letter");
    for (cut, _) in answer.char_indices() {
        let (before, after) = answer.split_at(cut);
        let found = split(TAGGED, prompt, [before, after]);
        assert_eq!(found, expected, "{before}|{after}");
    }
}

#[test]
fn a_thought_at_the_beginning_is_apart() {
    let thought = "One.\n\nTwo <b>é</b> </thin";
    let answer = format!(" \n<think>\n {thought}\n </think> \n\nCall  Ana.\n");
    check("user: hi\n", &answer, thought, "Call  Ana.\n");
    check("", "<think>a</think>b", "a", "b");
    check("", "<think></think>b", "", "b");
    check("", "<think>\n\n</think>\n\nb", "", "b");
    check("", "<think>a</think>", "a", "");
    check("", "<think>a</think> \n", "a", "");
}

#[test]
fn a_thought_without_an_end_is_the_whole_answer() {
    check("", "<think>\na </th", "a </th", "");
    check("", "<think>a b \n", "a b", "");
    check("", "<think> ", "", "");
    check("a\n<think>\n", "a b", "a b", "");
    check("a\n<think>\n", "<thin", "<thin", "");
    check("a\n<think>\n", " \n", "", "");
}

#[test]
fn a_prompt_may_open_the_thought() {
    check("a\n<think>\n", "\na\n</think>\n\nb", "a", "b");
    check("a<think>", "</think>b", "", "b");
    // Models that were taught to write the marker may do so behind it too.
    check("a\n<think>\n", "<think>\na</think>b", "a", "b");
    check("a\n<think>\n", "<think><think>a</think>b", "<think>a", "b");
    check("a\n<think>\n\n</think>\n\n", "a", "", "a");
    check("<think>\nis a word", "a</think>b", "", "a</think>b");
}

#[test]
fn later_markers_are_text() {
    for text in [
        "",
        " \n",
        "The tag <think>a</think> b",
        "a</think>b",
        "</think>b",
        "<thinking>a</thinking>",
        " <thin",
        "[THINK]a[/THINK]",
        "\n\n {\"a\": \"<think>\"}",
    ] {
        check("", text, "", text);
    }
    let text = "b <think>c</think> d";
    check("", &format!("<think>a</think>{text}"), "a", text);
    check(
        "",
        &format!("<think>a</think>\n{}", "</think>b"),
        "a",
        "</think>b",
    );
    check("", "<think><think>a</think>b", "<think>a", "b");
}

#[test]
fn a_thought_is_counted_by_its_pieces() {
    let count = |prompt, pieces: &[&str]| {
        let mut parser = ThoughtParser::new(TAGGED, prompt);
        let counts = pieces.iter().map(|piece| {
            parser.push(piece);
            parser.pieces()
        });
        let mut counts: Vec<u32> = counts.collect();
        parser.finish();
        counts.push(parser.pieces());
        counts
    };
    let answer = ["\n", "<th", "ink>", "", "a", "</think>", "\n", "b", "c"];
    assert_eq!(count("", &answer), [0, 0, 3, 4, 5, 6, 6, 6, 6, 6]);
    assert_eq!(count("<think>", &["a", "b</think>c", "d"]), [1, 2, 2, 2]);
    assert_eq!(count("", &["\n", "<", "a", "<think>"]), [0; 5]);
}

/// Returns a template of this source.
fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Default::default()).unwrap()
}

#[test]
fn the_template_tells_the_markers() {
    let of = |source: &str| ThoughtSyntax::of(&template(source));
    assert_eq!(of("{{ messages }} <think>"), None);
    assert_eq!(of("{{ content.split('</think>')[-1] }}"), Some(TAGGED));
    assert_eq!(of("[THINK]a[/THINK]"), Some(ThoughtSyntax::Bracketed));
    let answer = ["[THINK]a ", "[/THI", "NK]b"];
    let split = split(ThoughtSyntax::Bracketed, "", answer);
    assert_eq!(split, ("a".to_owned(), "b".to_owned()));
}

#[test]
fn the_tokens_of_a_prompt_tell_whether_it_opens_a_thought() {
    let tokenizer = tiny_agent();
    let source = "{{ messages[0]['content'] }}{% if open %}<|eot_id|><think>\n{% endif %}";
    for is_open in [false, true] {
        let conversation = Conversation {
            messages: vec![Message::new(
                "user",
                "a <think> b, long enough for its end".repeat(9),
            )],
            variables: [("open".to_owned(), is_open.into())].into_iter().collect(),
            ..Conversation::default()
        };
        let text = template(source).render(&conversation).unwrap();
        let prompt = tokenizer.encode(&text, Special::AsWritten).unwrap();
        let mut parser = TAGGED.parser(&prompt, &tokenizer).unwrap();
        let thought = parser.push("a</think>b").thought;
        assert_eq!(thought == "a", is_open, "{text}");
    }
    assert!(TAGGED.special_tokens(&tokenizer).is_empty());
}

proptest! {
    /// However an answer is cut, it is split alike.
    #[test]
    fn cuts_change_nothing(
        prompt in prop::sample::select(vec!["", "a\n<think>\n"]),
        words in prop::collection::vec(
            prop::sample::select(vec![
                "<think>", "</think>", "<", "</", "think>", ">", "\n", " ", "é", "a", "\u{2003}", "[/THINK]",
            ]),
            0..12,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let answer = words.concat();
        let mut places: Vec<usize> = answer.char_indices().map(|(at, _)| at).collect();
        places.push(answer.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &answer[cut[0]..cut[1]]);
        let whole = split(TAGGED, prompt, [answer.as_str()]);
        prop_assert_eq!(split(TAGGED, prompt, pieces), whole.clone());
        // Nothing is lost but markers and white space.
        let solid = |text: &str| text.split_whitespace().collect::<String>();
        let (thought, text) = whole;
        let ways = [("", ""), ("<think>", ""), ("", "</think>"), ("<think>", "</think>")];
        let mut ways = ways.map(|(opening, closing)| format!("{opening}{thought}{closing}{text}")).into_iter();
        prop_assert!(ways.any(|way| solid(&way) == solid(&answer)), "{:?}, {:?}", thought, text);
    }
}
