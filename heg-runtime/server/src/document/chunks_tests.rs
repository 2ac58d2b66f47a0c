//! Answers with thoughts as clients of chat see them, whole and as chunks.

use super::*;
use crate::answer::{ApiKind, Label};
use heg_runtime::FinishReason;
use heg_text::ToolCall;

fn envelope() -> Envelope {
    Envelope {
        api: ApiKind::Chat,
        label: Label {
            id: "chatcmpl-00c0ffee00c0ffee".to_owned(),
            created: 1_795_232_845,
            model: "tiny-agent".to_owned(),
        },
        fingerprint: "heg-00c0ffee00c0".to_owned(),
        tokenizer: None,
    }
}

fn stats() -> AnswerStats {
    AnswerStats {
        prompt_tokens: 20,
        answer_tokens: 7,
        thought_tokens: Some(4),
        ..AnswerStats::default()
    }
}

fn text(text: &str) -> Said {
    Said::Text(text.to_owned())
}

fn thought(thought: &str) -> Said {
    Said::Thought(thought.to_owned())
}

fn call() -> Said {
    Said::Call(ToolCall {
        name: "call_contact".to_owned(),
        arguments: "{}".to_owned(),
    })
}

fn written(mut pieces: Pieces) -> String {
    let pieces = std::iter::from_fn(|| pieces.take_piece());
    let bytes: Vec<u8> = pieces.flatten().collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn whole_answers_with_thoughts() {
    let answers = [
        vec![thought("Who"), thought("?"), text("call Ana")],
        vec![thought("Who?"), call()],
        vec![thought("Who")],
    ];
    let answers = answers.map(|said| {
        let mut piece = Piece::default();
        piece.add(said);
        let whole = vec![(piece, FinishReason::Stop)];
        written(Pieces::json(&envelope().whole(whole, &stats())))
    });
    insta::assert_snapshot!(answers.join("\n"));
}

#[test]
fn chunks_with_thoughts() {
    let form = StreamForm {
        usage: Usage::Included,
        token_ids: TokenIds::Omitted,
        empty: Empty::Omitted,
    };
    let mut writer = ChunkEvents::new(envelope(), 1, form);
    let mut events = String::new();
    for said in [
        vec![thought("Who")],
        Vec::new(),
        vec![thought("?"), text("I")],
        vec![text(" call.")],
        vec![call()],
    ] {
        let token = SaidToken {
            id: 5,
            said,
            scored: None,
        };
        events.push_str(&written(writer.token(0, token)));
    }
    let end = FinishReason::Stop.into();
    let stats = EndStats {
        own: stats(),
        all: Some(stats()),
    };
    events.push_str(&written(writer.end(0, Vec::new(), &end, stats)));
    insta::assert_snapshot!(events);
}
