//! Models small enough to write by hand, and the core that the tests of this crate share.
//!
//! If OpenVINO is not installed, [`core`] says so and returns `None`, and the test ends; if it is
//! installed and does not load, the test fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::io::Write;
use std::sync::{Arc, OnceLock};

use heg_openvino::{Core, HostBuffer, OpenvinoError, Tensor, TensorType, find_libraries};

/// Returns the core of this test process; `None` if OpenVINO is not installed.
pub(crate) fn core() -> Option<&'static Core> {
    static CORE: OnceLock<Option<Core>> = OnceLock::new();
    let core = CORE.get_or_init(|| match find_libraries() {
        Ok(folder) => Some(Core::load_from(&folder).expect("OpenVINO to load")),
        Err(OpenvinoError::LibraryNotFound { .. }) => None,
        Err(error) => panic!("{error}"),
    });
    if core.is_none() {
        let text = "skipped: OpenVINO not found (run: cargo xtask setup)";
        // Not `println!`, which the test harness would swallow.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
    core.as_ref()
}

/// Returns a model of `y = x + b`: x and y are `f32`, any number of rows of four; b is the first
/// four `f32` of the weights.
pub(crate) fn add() -> String {
    let row = "<dim>-1</dim><dim>4</dim>";
    let layers = format!(
        r#"<layer id="0" name="x" type="Parameter" version="opset1">
             <data shape="?,4" element_type="f32"/>
             <output><port id="0" precision="FP32" names="x">{row}</port></output></layer>
           <layer id="1" name="b" type="Const" version="opset1">
             <data element_type="f32" shape="4" offset="0" size="16"/>
             <output><port id="0" precision="FP32"><dim>4</dim></port></output></layer>
           <layer id="2" name="y" type="Add" version="opset1">
             <data auto_broadcast="numpy"/>
             <input><port id="0" precision="FP32">{row}</port>
               <port id="1" precision="FP32"><dim>4</dim></port></input>
             <output><port id="2" precision="FP32" names="y">{row}</port></output></layer>
           <layer id="3" name="result" type="Result" version="opset1">
             <input><port id="0" precision="FP32">{row}</port></input></layer>"#
    );
    let edges = r#"<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
        <edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
        <edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>"#;
    model(&layers, edges)
}

/// A model of `count` products of an n × n matrix with the input: slow, in steps between which it
/// can be cancelled.
#[allow(dead_code, reason = "not every test binary needs a slow model")]
pub(crate) fn products(n: usize, count: usize) -> String {
    let dims = format!("<dim>{n}</dim><dim>{n}</dim>");
    let mut layers = format!(
        r#"<layer id="0" name="x" type="Parameter" version="opset1">
             <data shape="{n},{n}" element_type="f32"/>
             <output><port id="0" precision="FP32" names="x">{dims}</port></output></layer>"#
    );
    let mut edges = String::new();
    for id in 1..=count {
        let (last, port) = (id - 1, if id == 1 { 0 } else { 2 });
        layers += &format!(
            r#"<layer id="{id}" name="product{id}" type="MatMul" version="opset1">
                 <data transpose_a="false" transpose_b="false"/>
                 <input><port id="0" precision="FP32">{dims}</port>
                   <port id="1" precision="FP32">{dims}</port></input>
                 <output><port id="2" precision="FP32">{dims}</port></output></layer>"#
        );
        edges += &format!(
            r#"<edge from-layer="{last}" from-port="{port}" to-layer="{id}" to-port="0"/>
               <edge from-layer="0" from-port="0" to-layer="{id}" to-port="1"/>"#
        );
    }
    let result = count + 1;
    layers += &format!(
        r#"<layer id="{result}" name="result" type="Result" version="opset1">
             <input><port id="0" precision="FP32">{dims}</port></input></layer>"#
    );
    edges +=
        &format!(r#"<edge from-layer="{count}" from-port="2" to-layer="{result}" to-port="0"/>"#);
    model(&layers, &edges)
}

/// Creates a buffer with `values`.
pub(crate) fn buffer(values: &[f32]) -> Arc<HostBuffer> {
    Arc::new(HostBuffer::from_f32(values).unwrap())
}

/// Returns a view of a whole buffer as bytes.
pub(crate) fn bytes(buffer: &Arc<HostBuffer>) -> Tensor {
    use heg_openvino::Memory;
    Tensor::new(buffer.clone(), 0, TensorType::U8, &[buffer.len()]).unwrap()
}

/// Returns a view of `count` rows of four `f32`, from row `first` on.
pub(crate) fn rows(buffer: &Arc<HostBuffer>, first: usize, count: usize) -> Tensor {
    Tensor::new(buffer.clone(), first * 16, TensorType::F32, &[count, 4]).unwrap()
}

fn model(layers: &str, edges: &str) -> String {
    format!(
        r#"<?xml version="1.0"?><net name="tiny" version="11">
           <layers>{layers}</layers><edges>{edges}</edges></net>"#
    )
}
