//! Stops a compile after a pass and prints its result.

use std::fmt::Write as _;
use std::path::Path;

use heg_artifacts::Store;

use crate::assemble::kernel_of;
use crate::error::CompileError;
use crate::lower::{IrDocument, Literals, lower_verified};
use crate::npu::Pool;
use crate::options::CompileOptions;
use crate::phase::Progress;
use crate::plan::{Graphs, Plan};
use crate::products::{Inquirer, cuts, orders};
use crate::program::lower_program;
use crate::target::Target;
use crate::variants::variants;
use heg_ingest::ModelSource;

/// A pass after which a compile can stop, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Emit {
    /// Operator graphs of all layers and of the head.
    Graph,
    /// Distinct kernels, and the tensors between their places.
    Heg,
    /// Variants, stored weights, and the weights of each place.
    Plan,
    /// CPU program of every kernel.
    Programs,
    /// OpenVINO IR of every variant.
    Ir,
    /// Both orders of the operands of each product, by the NPU compiler's estimates.
    Orders,
    /// Blobs of the cuts by which two devices would share products, chosen by the same estimates.
    Cuts,
}

/// Returns the result of a pass as stable text. Reads the model's config and no weights; if the NPU's compiler is
/// asked, its blobs are kept in the store in `folder`.
///
/// # Errors
///
/// The errors of the passes up to this one.
pub fn emit(
    target: &Target,
    folder: &Path,
    options: &CompileOptions,
    pass: Emit,
    progress: &dyn Progress,
) -> Result<String, CompileError> {
    let target = target.with(options);
    let config = ModelSource::config(&target.spec.source)?;
    let graphs = Graphs::build(&target, &config, options.verify)?;
    if pass == Emit::Graph {
        return Ok(graphs.to_string());
    }
    let plan = Plan::of_graphs(&target, &config, graphs, options.verify)?;
    let asked = |ask: &dyn Fn(&Inquirer<'_>) -> Result<String, CompileError>| {
        let store = Store::open(folder)?.shared(options.sharing.clone());
        let pool = Pool::new(folder.join("npu"));
        ask(&Inquirer::new(
            &plan,
            (&store, &pool),
            options.verify,
            progress,
        ))
    };
    match pass {
        Emit::Graph | Emit::Heg => Ok(plan.heg.to_string()),
        Emit::Plan => Ok(plan.to_string()),
        Emit::Programs => programs(&plan),
        Emit::Ir => ir(&plan, options),
        Emit::Orders => asked(&|inquirer| orders(inquirer, &target.spec.npu_platforms)),
        Emit::Cuts => asked(&|inquirer| cuts(inquirer, &options.partitions)),
    }
}

/// The CPU program of every kernel.
fn programs(plan: &Plan) -> Result<String, CompileError> {
    let mut text = String::new();
    for body in &plan.heg.kernels {
        let kernel = kernel_of(body, plan.weights);
        let program = lower_program(body, &kernel)?;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", program.text(&kernel));
    }
    Ok(text)
}

/// The IR of every variant, in lines instead of XML.
fn ir(plan: &Plan, options: &CompileOptions) -> Result<String, CompileError> {
    let mut literals = Literals::default();
    let mut text = String::new();
    for kernel in &plan.heg.kernels {
        for variant in variants(plan, kernel.group) {
            let lowering = variant.lowering;
            let ir = lower_verified(kernel, lowering, &mut literals, options.verify)?;
            let (device, shape) = (variant.device.name(), lowering.shape);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{} for {device}, {shape}", kernel.name);
            let _ = match IrDocument::read(&ir) {
                Ok(document) => writeln!(text, "{document}"),
                Err(_) => writeln!(text, "{ir}"),
            };
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::fixture::path;
    use crate::phase::Silent;

    fn emitted(pass: Emit) -> String {
        let mut target = Target::read(&path("golden/llama")).unwrap();
        target.spec.chunk_tokens = vec![32];
        target.spec.mha_context_tokens = vec![64];
        let store = Path::new("unused");
        emit(&target, store, &CompileOptions::default(), pass, &Silent).unwrap()
    }

    #[test]
    fn every_pass_prints_stable_text() {
        assert_snapshot!("graph", emitted(Emit::Graph));
        assert_snapshot!("heg", emitted(Emit::Heg));
        assert_snapshot!("plan", emitted(Emit::Plan));
        assert_snapshot!("programs", emitted(Emit::Programs));
        assert_snapshot!("ir", emitted(Emit::Ir));
    }
}
