//! Grammars of answers that a model may think before.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use super::super::thoughts::{ThoughtOpening, ThoughtSyntax};
use super::markers::Markers;
use super::tools::ANY_TEXT;

/// Returns the grammar of a thought, if there is one, and of the answer behind it.
pub(super) fn before(
    syntax: ThoughtSyntax,
    opening: ThoughtOpening,
    markers: &Markers,
    mut answer: TopLevelGrammar,
) -> TopLevelGrammar {
    if let Some(first) = answer.grammars.first_mut() {
        first.name = Some("answer".to_owned());
    }
    let lark = GrammarWithLexer::from_lark(lark(syntax, opening, markers));
    answer.grammars.insert(0, lark);
    answer
}

/// Returns the grammar around the answer, which is the rule `@answer`.
fn lark(syntax: ThoughtSyntax, opening: ThoughtOpening, markers: &Markers) -> String {
    let [begin, end] = syntax.markers();
    let start = match opening {
        ThoughtOpening::InPrompt => "thought WS? @answer".to_owned(),
        ThoughtOpening::InAnswer => {
            let begin = markers.symbol(begin);
            format!("(WS? {begin} thought WS?)? @answer")
        }
    };
    // Text up to and including the marker.
    let thought = match markers.token(end) {
        Some(token) => format!("thought: TEXT? {token}"),
        None => format!("thought[lazy]: TEXT {end:?}"),
    };
    format!("start: {start}\n{thought}\nTEXT: {ANY_TEXT}\nWS: /[ \\t\\r\\n]{{1,8}}/\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_texts_or_special_tokens() {
        let syntax = ThoughtSyntax::Bracketed;
        let tokens = [("[THINK]", 34), ("[/THINK]", 35)];
        let vocabularies = [Markers::default(), Markers::of(tokens)];
        let grammars = [ThoughtOpening::InPrompt, ThoughtOpening::InAnswer].map(|opening| {
            let of = |markers| format!("{opening:?}\n{}", lark(syntax, opening, markers));
            vocabularies.each_ref().map(of).join("\n")
        });
        insta::assert_snapshot!(grammars.join("\n"));
    }
}
