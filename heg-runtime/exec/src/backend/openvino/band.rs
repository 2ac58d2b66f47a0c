//! The priority of a compiled form on its device, which follows the class of what it runs.
//!
//! Where a plugin has priorities that a compiled model may change (the NPU's `MODEL_PRIORITY`), reactive work runs at
//! the high one and proactive work at the default, so that the device itself prefers reactive work, even over other
//! programs. The other plugins are left alone: the CPU's has no priorities, and the GPU's, as of 2026.4, fixes them
//! when it compiles.

use std::sync::{Mutex, PoisonError};

use heg_openvino::CompiledModel;

use heg_sched::Class;

/// The priority of one compiled form, shared by all its requests.
#[derive(Debug, Default)]
pub(super) struct Band(Mutex<State>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Unknown: the plugin's properties have not been read yet.
    #[default]
    Unknown,
    /// The plugin has no priorities, or does not let them change.
    Fixed,
    /// Set for work of this class.
    Set(Class),
}

impl Band {
    /// Sets the priority for work of this class, if the last work was of the other.
    pub(super) fn select(&self, class: Class, compiled: &CompiledModel) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Unknown && !has_bands(compiled) {
            *state = State::Fixed;
        }
        if matches!(*state, State::Fixed) || *state == State::Set(class) {
            return;
        }
        *state = match compiled.set_property(MODEL_PRIORITY, priority(class)) {
            Ok(()) => State::Set(class),
            // A hint that a plugin lists and does not take is no reason not to run; it is not tried again.
            Err(_) => State::Fixed,
        };
    }
}

fn has_bands(compiled: &CompiledModel) -> bool {
    let supported = compiled.property("SUPPORTED_PROPERTIES");
    supported.is_ok_and(|names| names.split_whitespace().any(|name| name == MODEL_PRIORITY))
}

fn priority(class: Class) -> &'static str {
    match class {
        Class::Reactive => "HIGH",
        // The plugins' default.
        Class::Proactive => "MEDIUM",
    }
}

const MODEL_PRIORITY: &str = "MODEL_PRIORITY";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_or_skip;

    /// x[4] to its double, as an IR.
    const TWICE: &str = r#"<?xml version="1.0"?><net name="twice" version="11"><layers>
        <layer id="0" name="x" type="Parameter" version="opset1"><data element_type="f32" shape="4"/>
        <output><port id="0" precision="FP32"><dim>4</dim></port></output></layer>
        <layer id="1" name="y" type="Add" version="opset1"><data auto_broadcast="numpy"/>
        <input><port id="0"><dim>4</dim></port><port id="1"><dim>4</dim></port></input>
        <output><port id="2" precision="FP32"><dim>4</dim></port></output></layer>
        <layer id="2" name="z" type="Result" version="opset1">
        <input><port id="0"><dim>4</dim></port></input></layer></layers>
        <edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
        <edge from-layer="0" from-port="0" to-layer="1" to-port="1"/>
        <edge from-layer="1" from-port="2" to-layer="2" to-port="0"/></edges></net>"#;

    /// Plugins that change theirs need a device that is not here: those that have none, and that list one and refuse
    /// it, are.
    #[test]
    fn a_plugin_without_bands_is_asked_once() {
        let Some(core) = core_or_skip() else { return };
        let model = core.read_model(TWICE.as_bytes(), None).unwrap();
        for (device, listed) in [("CPU", false), ("AUTO:CPU", true)] {
            let compiled = match core.compile(&model, device, &[]) {
                Ok(compiled) => compiled,
                // OpenVINO's wheel has this plugin; our set-up leaves it out.
                Err(error) if device != "CPU" => {
                    assert!(error.to_string().contains("is not registered"), "{error}");
                    println!("skipped: {device} (needs all of OpenVINO's wheel)");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert_eq!(has_bands(&compiled), listed, "{device}");
            let band = Band::default();
            for class in [Class::Reactive, Class::Proactive] {
                band.select(class, &compiled);
                assert_eq!(*band.0.lock().unwrap(), State::Fixed, "{device}");
            }
            compiled.request().unwrap().infer().unwrap();
        }
    }

    #[test]
    fn a_band_that_is_set_is_left_alone_for_the_same_class() {
        let Some(core) = core_or_skip() else { return };
        let model = core.read_model(TWICE.as_bytes(), None).unwrap();
        // Its plugin refuses every change, so a state that stays was not touched.
        let compiled = core.compile(&model, "CPU", &[]).unwrap();
        let band = Band(Mutex::new(State::Set(Class::Reactive)));
        band.select(Class::Reactive, &compiled);
        assert_eq!(*band.0.lock().unwrap(), State::Set(Class::Reactive));
        band.select(Class::Proactive, &compiled);
        assert_eq!(*band.0.lock().unwrap(), State::Fixed);
    }
}
