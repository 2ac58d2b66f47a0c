//! Every shipped file parses, has the name of its file, and is embedded.

use heg_spec::expr::{EvalError, Expr, Scope, Value};
use heg_spec::{Architecture, DeviceClass, ModelSpec, Source, SpecError, shipped};

fn names(files: &[(&str, &str)]) -> Vec<String> {
    files.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// Names of the `.ron` files in a folder of this crate.
fn on_disk(folder: &str) -> Vec<String> {
    let folder = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ron"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn every_file_on_disk_is_embedded() {
    assert_eq!(names(shipped::ARCHITECTURES), on_disk("architectures"));
    assert_eq!(names(shipped::FUSIONS), on_disk("fusions"));
    assert_eq!(names(shipped::SOCS), on_disk("socs"));
    assert_eq!(names(shipped::POLICIES), on_disk("policies"));
}

#[test]
fn every_file_parses_and_goes_by_its_own_name() {
    for name in names(shipped::ARCHITECTURES) {
        assert_eq!(shipped::architecture(&name).unwrap().name, name);
    }
    for name in names(shipped::FUSIONS) {
        assert_eq!(shipped::fusion(&name).unwrap().name, name);
    }
    for name in names(shipped::SOCS) {
        assert_eq!(shipped::soc(&name).unwrap().name, name);
    }
    for name in names(shipped::POLICIES) {
        assert_eq!(shipped::policy(&name).unwrap().name, name);
    }
}

/// On a machine whose NPU and GPU are missing, the CPU is all there is, and programs are the fastest that it has.
#[test]
fn the_cpu_of_every_laptop_has_programs() {
    let laptops = names(shipped::SOCS);
    let laptops = laptops
        .iter()
        .filter(|name| name.starts_with("core-ultra-"));
    let mut count = 0;
    for name in laptops {
        let soc = shipped::soc(name).unwrap();
        let mut devices = soc.devices.iter();
        let cpu = devices.find(|device| device.class == DeviceClass::Cpu);
        assert!(cpu.unwrap().programs.is_some(), "{name}");
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn every_model_file_parses_and_names_what_exists() {
    for name in on_disk("models") {
        let path = format!("{}/models/{name}.ron", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        let source = Source {
            file: &path,
            text: &text,
        };
        let model = ModelSpec::parse(source).unwrap();
        assert_eq!(model.name, name);
        assert!(shipped::fusion(&model.fusion).is_ok());
        assert!(
            model
                .architecture
                .is_none_or(|name| shipped::architecture(&name).is_ok())
        );
    }
}

#[test]
fn a_model_type_belongs_to_one_architecture() {
    let mut seen = std::collections::BTreeMap::new();
    for name in names(shipped::ARCHITECTURES) {
        let architecture = shipped::architecture(&name).unwrap();
        let mut classes: Vec<&str> = architecture.classes.iter().map(String::as_str).collect();
        if classes.is_empty() {
            classes.push("any other");
        }
        for model_type in &architecture.model_types {
            for &class in &classes {
                let found = shipped::architecture_of(model_type, &["unknown", class]).unwrap();
                assert_eq!(found.name, name);
                let key = (model_type.clone(), class.to_owned());
                assert_eq!(seen.insert(key, name.clone()), None);
            }
        }
    }
}

/// A scope of the architecture's own names and `layer`; every key of the config is absent.
struct Names<'a>(&'a Architecture);

impl Scope for Names<'_> {
    fn name(&self, name: &str) -> Result<Value, EvalError> {
        if name == "layer" || self.0.values.contains_key(name) {
            return Ok(Value::None);
        }
        Err(EvalError::UnknownName {
            found: name.to_owned(),
            nearest: None,
        })
    }

    fn config(&self, _path: &str) -> Value {
        Value::None
    }
}

#[test]
fn values_use_names_that_exist() {
    for name in names(shipped::ARCHITECTURES) {
        let architecture = shipped::architecture(&name).unwrap();
        for (value, expr) in &architecture.values {
            let result = Expr::eval(expr, &Names(&architecture));
            assert!(
                !matches!(result, Err(EvalError::UnknownName { .. })),
                "{name}: {value}: {result:?}"
            );
        }
    }
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    let check = |error: SpecError, expected: &str| assert_eq!(error.to_string(), expected);
    check(
        shipped::architecture("lama").unwrap_err(),
        "unknown architecture `lama`, expected one of `bert`, `bert_reranker`, `gemma2`, `gemma3`, `granite`, `llama`, `mistral`, \
         `olmo2`, `phi3`, `qwen2`, `qwen3`, `smollm3`; did you mean `llama`?",
    );
    let unknown = shipped::architecture_of("Qwen_3", &[]);
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.starts_with("unknown model type `Qwen_3`, expected one of `bert`, "));
    assert!(unknown.ends_with("; did you mean `qwen3`?"), "{unknown}");
    check(
        shipped::fusion("agent_xpu").unwrap_err(),
        "unknown fusion plan `agent_xpu`, expected one of `agent-xpu`; did you mean `agent-xpu`?",
    );
    check(
        shipped::policy("agent-xpu-v3").unwrap_err(),
        "unknown policy `agent-xpu-v3`, expected one of `agent-xpu`, `agent-xpu-one-device`, \
         `agent-xpu-pair`, `agent-xpu-quiet`, `agent-xpu-v1`, `cpu-continuous-batching`, `cpu-priority-batching`, \
         `heterollm-layer`, `heterollm-tensor`, `igpu-continuous-batching`, `sd-npu`; did you mean `agent-xpu-v1`?",
    );
    check(
        shipped::soc("???").unwrap_err(),
        "unknown SoC `???`, expected one of `core-ultra-5-125h`, `core-ultra-7-258v`, `core-ultra-x7-358h`, \
         `host-cpu`, `host-cpu-f32`, `host-cpu-gpu`, `host-cpu-openvino`, `host-gpu`, `host-pair`, `host-pair-gpu`, `host-pair-npu`, `host-roles`, `host-roles-openvino`, `snapdragon-8-gen3`",
    );
}
