//! Messages as clients see them, whole and as events.

use std::time::Duration;

use super::*;
use crate::document::EndStats;

fn label() -> Label {
    Label {
        id: "msg_00c0ffee00c0ffee".to_owned(),
        created: 1_795_232_845,
        model: "tiny-agent".to_owned(),
    }
}

fn document() -> MessageDocument {
    MessageDocument {
        label: label(),
        context_tokens: 1024,
    }
}

fn stats() -> AnswerStats {
    AnswerStats {
        prompt_tokens: 20,
        answer_tokens: 7,
        reused_tokens: 12,
        ttft: Duration::from_millis(40),
        decode: Duration::from_millis(8),
        ..AnswerStats::default()
    }
}

fn call(who: &str) -> Said {
    Said::Call(ToolCall {
        name: "call_contact".to_owned(),
        arguments: format!("{{\"who\": \"{who}\", \"at\": 1.50}}"),
    })
}

fn text(text: &str) -> Said {
    Said::Text(text.to_owned())
}

fn thought(thought: &str) -> Said {
    Said::Thought(thought.to_owned())
}

fn stopped(stop_text: &str) -> AnswerEnd {
    AnswerEnd {
        reason: FinishReason::Stop,
        stop_text: Some(stop_text.to_owned()),
    }
}

fn written(mut pieces: Pieces) -> String {
    let pieces = std::iter::from_fn(|| pieces.take_piece());
    let bytes: Vec<u8> = pieces.flatten().collect();
    String::from_utf8(bytes).unwrap()
}

fn whole_of(said: Vec<Said>, end: &AnswerEnd) -> String {
    let mut piece = Piece::default();
    piece.add(said);
    written(document().whole(piece, end, &stats()))
}

#[test]
fn whole_messages() {
    let messages = [
        whole_of(vec![text("call "), text("Ana")], &FinishReason::Stop.into()),
        whole_of(
            vec![text("I call."), call("Ana"), call("Ben")],
            &FinishReason::Stop.into(),
        ),
        whole_of(vec![text("call A")], &stopped("na")),
        whole_of(vec![text("call")], &FinishReason::Length.into()),
        whole_of(Vec::new(), &FinishReason::Stop.into()),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn whole_messages_with_thoughts() {
    let messages = [
        whole_of(
            vec![thought("Who"), thought("?"), text("call Ana")],
            &FinishReason::Stop.into(),
        ),
        whole_of(
            vec![thought("Who?"), call("Ana")],
            &FinishReason::Stop.into(),
        ),
        whole_of(vec![thought("Who")], &FinishReason::Length.into()),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn an_answer_that_fills_the_context_says_so() {
    let end = AnswerEnd::from(FinishReason::Length);
    let stop = |context_tokens| {
        let document = MessageDocument {
            context_tokens,
            ..document()
        };
        document.stop(&end, 0, &stats()).0
    };
    assert_eq!(stop(28), "max_tokens");
    assert_eq!(stop(27), "model_context_window_exceeded");
}

fn events_of(said: Vec<Vec<Said>>, rest: Vec<Said>, end: &AnswerEnd) -> String {
    let mut writer = MessageEvents::new(document());
    let before = AnswerStats {
        reused_tokens: 0,
        answer_tokens: 0,
        ..stats()
    };
    let mut events = written(writer.begin(&before));
    for said in said {
        let token = SaidToken {
            id: 5,
            said,
            scored: None,
        };
        events.push_str(&written(writer.token(0, token)));
    }
    let end_stats = EndStats {
        own: stats(),
        all: Some(stats()),
    };
    events + &written(writer.end(0, rest, end, end_stats))
}

#[test]
fn events_of_a_text() {
    let said = vec![vec![text("call")], Vec::new(), vec![text(" A")]];
    insta::assert_snapshot!(events_of(said, vec![text("na")], &stopped("x")));
}

#[test]
fn events_of_calls() {
    let said = vec![vec![text("I call.")], vec![call("Ana")]];
    let end = FinishReason::Stop.into();
    insta::assert_snapshot!(events_of(said, vec![call("Ben")], &end));
}

#[test]
fn events_of_thoughts() {
    let said = vec![
        vec![thought("Who")],
        vec![thought("?"), text("I")],
        vec![text(" call.")],
    ];
    let before_text = events_of(said, Vec::new(), &FinishReason::Stop.into());
    let said = vec![vec![thought("Who?")], vec![call("Ana")]];
    let before_call = events_of(said, Vec::new(), &FinishReason::Stop.into());
    let said = vec![vec![thought("Wh")]];
    let alone = events_of(said, vec![thought("o")], &FinishReason::Length.into());
    insta::assert_snapshot!([before_text, before_call, alone].join("\n"));
}

#[test]
fn events_of_an_answer_that_fails() {
    let mut writer = MessageEvents::new(document());
    writer.begin(&stats());
    insta::assert_snapshot!(written(writer.failed(&ApiError::Deadline)));
}
