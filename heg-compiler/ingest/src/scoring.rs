//! The form of a reranker's scores, as sentence-transformers writes it into `config.json`.

use heg_spec::ScoreForm;

use super::config_json::{ConfigJson, wrong_value};
use super::error::IngestError;

/// Returns the form of a model's scores: that of the activation that its config names, or else the logistic function,
/// which sentence-transformers applies to a model with one label.
///
/// # Errors
///
/// `Value`, if the model has several labels, or its activation is another one.
pub fn score_form(config: &ConfigJson) -> Result<ScoreForm, IngestError> {
    if let Some(labels) = config.value(LABELS) {
        let count = labels.as_object().map(serde_json::Map::len);
        if count != Some(1) {
            let expected = "one label, whose score ranks documents";
            return Err(wrong_value(config.path(), LABELS, labels, expected));
        }
    }
    let named = |key: &&&str| config.value(key).is_some();
    let Some(key) = ACTIVATIONS.iter().find(named) else {
        return Ok(ScoreForm::Probability);
    };
    let name = config.text(key).and_then(|name| name.rsplit('.').next());
    match (name, config.value(key)) {
        (Some("Identity"), _) => Ok(ScoreForm::Logit),
        (Some("Sigmoid"), _) | (_, None) => Ok(ScoreForm::Probability),
        (_, Some(found)) => {
            let expected = "the class `Identity` or `Sigmoid` of `torch.nn`";
            Err(wrong_value(config.path(), key, found, expected))
        }
    }
}

/// The labels of a model, by their numbers.
const LABELS: &str = "id2label";

/// The keys of the activation, that of sentence-transformers 4 first.
const ACTIVATIONS: [&str; 2] = [
    "sentence_transformers.activation_fn",
    "sbert_ce_default_activation_function",
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn form(config: &str) -> Result<ScoreForm, String> {
        let config = ConfigJson::parse(Path::new("config.json"), config.as_bytes()).unwrap();
        score_form(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn the_activation_says_how_scores_are_given() {
        let named = |key: &str, class: &str| form(&format!(r#"{{{key}: "{class}"}}"#));
        let old = r#""sbert_ce_default_activation_function""#;
        let identity = named(old, "torch.nn.modules.linear.Identity");
        assert_eq!(identity, Ok(ScoreForm::Logit));
        let sigmoid = named(old, "torch.nn.modules.activation.Sigmoid");
        assert_eq!(sigmoid, Ok(ScoreForm::Probability));
        let new = r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity",
            "version": "4.1.0"}, "id2label": {"0": "LABEL_0"}}"#;
        assert_eq!(form(new), Ok(ScoreForm::Logit));
        assert_eq!(form("{}"), Ok(ScoreForm::Probability));
    }

    #[test]
    fn other_activations_and_several_labels_are_refused() {
        let said = [
            form(
                r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.ReLU"}}"#,
            ),
            form(r#"{"sbert_ce_default_activation_function": 1}"#),
            form(r#"{"id2label": {"0": "no", "1": "yes"}}"#),
            form(r#"{"id2label": ["yes"]}"#),
        ];
        let said = said.map(Result::unwrap_err);
        insta::assert_snapshot!("refused_scores", said.join("\n"));
    }
}
