//! Responses as clients see them, whole and as events.

use std::time::Duration;

use super::*;
use crate::document::{EndStats, EventWriter, SaidToken};
use crate::error::ApiError;
use heg_text::ToolCall;

fn document() -> ResponseDocument {
    let asked = json!({
        "instructions": "Be brief.", "metadata": {"run": "7"}, "store": true,
        "tools": [{"type": "namespace", "name": "agents", "tools": []}],
    });
    ResponseDocument {
        label: Label {
            id: "resp_00c0ffee00c0ffee".to_owned(),
            created: 1_795_232_845,
            model: "tiny-agent".to_owned(),
        },
        asked: asked.as_object().unwrap().clone(),
        keeping: None,
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
        arguments: format!("{{\"who\": \"{who}\"}}"),
    })
}

fn text(text: &str) -> Said {
    Said::Text(text.to_owned())
}

fn thought(thought: &str) -> Said {
    Said::Thought(thought.to_owned())
}

fn written(mut pieces: Pieces) -> String {
    let pieces = std::iter::from_fn(|| pieces.take_piece());
    let bytes: Vec<u8> = pieces.flatten().collect();
    String::from_utf8(bytes).unwrap()
}

fn whole_of(said: Vec<Said>, reason: FinishReason) -> String {
    let mut piece = Piece::default();
    piece.add(said);
    written(document().whole(piece, &reason.into(), &stats()))
}

#[test]
fn whole_responses() {
    let responses = [
        whole_of(vec![text("call "), text("Ana")], FinishReason::Stop),
        whole_of(
            vec![
                text("I call."),
                call("Ana"),
                call("Ben"),
                Said::Call(ToolCall {
                    name: "agents.spawn".to_owned(),
                    arguments: "{}".to_owned(),
                }),
            ],
            FinishReason::Stop,
        ),
        whole_of(vec![text("call")], FinishReason::Length),
        whole_of(Vec::new(), FinishReason::Stop),
    ];
    insta::assert_snapshot!(responses.join("\n"));
}

#[test]
fn whole_responses_with_thoughts() {
    let responses = [
        whole_of(
            vec![thought("Who"), thought("?"), text("call Ana")],
            FinishReason::Stop,
        ),
        whole_of(vec![thought("Who?"), call("Ana")], FinishReason::Stop),
        whole_of(vec![thought("Who")], FinishReason::Length),
    ];
    insta::assert_snapshot!(responses.join("\n"));
}

fn events_of(said: Vec<Vec<Said>>, rest: Vec<Said>, reason: FinishReason) -> String {
    let mut writer = ResponseEvents::new(Box::new(document()));
    let mut events = written(writer.begin(&stats()));
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
    events + &written(writer.end(0, rest, &reason.into(), end_stats))
}

#[test]
fn events_of_a_text() {
    let said = vec![vec![text("call")], Vec::new(), vec![text(" A")]];
    insta::assert_snapshot!(events_of(said, vec![text("na")], FinishReason::Length));
}

#[test]
fn events_of_calls() {
    let said = vec![vec![text("I call.")], vec![call("Ana")]];
    insta::assert_snapshot!(events_of(said, vec![call("Ben")], FinishReason::Stop));
}

#[test]
fn events_of_thoughts() {
    let said = vec![
        vec![thought("Who")],
        vec![thought("?"), text("I")],
        vec![text(" call.")],
    ];
    let before_text = events_of(said, Vec::new(), FinishReason::Stop);
    let said = vec![vec![thought("Who?")], vec![call("Ana")]];
    let before_call = events_of(said, Vec::new(), FinishReason::Stop);
    let said = vec![vec![thought("Wh")]];
    let alone = events_of(said, vec![thought("o")], FinishReason::Length);
    insta::assert_snapshot!([before_text, before_call, alone].join("\n"));
}

#[test]
fn events_of_an_answer_without_text_and_of_one_that_fails() {
    let mut events = events_of(Vec::new(), Vec::new(), FinishReason::Stop);
    let mut writer = ResponseEvents::new(Box::new(document()));
    writer.begin(&stats());
    events.push_str(&written(writer.failed(&ApiError::Deadline)));
    insta::assert_snapshot!(events);
}

/// The items of an answer give the same messages whether the server keeps them or the client sends them back.
#[test]
fn a_kept_answer_is_the_one_that_a_client_sends_back() {
    let mut piece = Piece::default();
    let of_namespace = Said::Call(ToolCall {
        name: "agents.spawn".to_owned(),
        arguments: "{}".to_owned(),
    });
    piece.add(vec![
        thought("Who?"),
        text("I call."),
        call("Ana"),
        of_namespace,
    ]);
    let mut output = Output::new(&document());
    for part in piece.parts {
        match part {
            Said::Thought(thought) => output.add_thought(&thought, "completed"),
            Said::Text(text) => output.add_text(&text, "completed"),
            Said::Call(call) => output.add_call(&call.name, &call.arguments),
        }
    }
    assert_eq!(output.items[3]["namespace"], "agents");
    assert_eq!(output.items[3]["name"], "spawn");
    let mut kept = History::default();
    add_output(&mut kept, &output.items);
    let results = output.items[2..].iter().map(|call| {
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"})
    });
    let input: Vec<Value> = output.items.iter().cloned().chain(results).collect();
    let body = json!({"model": "m", "input": input}).to_string();
    let request = crate::ResponsesRequest::parse(body.as_bytes(), [], &BOUNDS).unwrap();
    let (_, sent) = request.into_chat(History::default()).unwrap();
    assert_eq!(sent.messages[..1], kept.messages[..]);
    assert_eq!(kept.messages[0]["reasoning_content"], "Who?");
    assert_eq!(sent.messages.len(), 3);
}

const BOUNDS: crate::PromptBounds = crate::PromptBounds {
    tokens: 1024,
    bounded_by: crate::Bound::Context,
    token_bytes: 16,
};
