//! Parses arbitrary text as every kind of spec file, and as an expression, which is then evaluated.
//!
//! Spec files are written by people: an error must name places that exist in the file.

use heg_spec::expr::{EvalError, Expr, Scope, Value};
use heg_spec::{Architecture, Fusion, ModelSpec, Soc, Source, SpecError};

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let source = Source {
        file: "fuzz.ron",
        text,
    };
    if let Some(architecture) = check(Architecture::parse(source), text) {
        for expr in architecture.values.values() {
            use_expression(expr);
        }
    }
    check(ModelSpec::parse(source), text);
    check(Fusion::parse(source), text);
    check(Soc::parse(source), text);
    if let Ok(expr) = Expr::parse(text) {
        assert_eq!(expr.text(), text);
        use_expression(&expr);
    }
}

fn check<T>(result: Result<T, SpecError>, text: &str) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(SpecError::Invalid { problems }) => {
            assert!(!problems.is_empty());
            for problem in problems {
                assert!((1..=text.lines().count() + 1).contains(&problem.line));
                assert!(problem.column >= 1);
            }
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn use_expression(expr: &Expr) {
    // A type error is a valid result.
    let _ = expr.eval(&Model);
}

/// A model in which every name is a number and some keys exist.
struct Model;

impl Scope for Model {
    fn name(&self, name: &str) -> Result<Value, EvalError> {
        Ok(Value::Number(name.len() as f64))
    }

    fn config(&self, path: &str) -> Value {
        match path {
            "layer_types" => Value::List(vec![Value::Text("full_attention".to_owned()); 2]),
            "hidden_act" => Value::Text("silu".to_owned()),
            "hidden_size" => Value::Number(64.0),
            "tie_word_embeddings" => Value::Bool(true),
            _ => Value::None,
        }
    }
}
