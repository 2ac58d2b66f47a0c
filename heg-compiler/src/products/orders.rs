//! Both orders of the operands of a model's products, by the NPU compiler's estimates.

use std::fmt;

use heg_spec::{Group, NpuPlatform};

use super::{Inquirer, Inquiry, Linear, Reply, kernel};
use crate::error::CompileError;
use crate::heg::KernelBody;
use crate::lower::WeightsFirst;
use crate::npu::NpuError;
use crate::plan::Plan;

/// Tokens of a call, and the platform.
pub(crate) type Site = (u32, NpuPlatform);

/// A product, or a whole kernel with several products.
struct Subject {
    /// Operators with this shape, or the kernel's name.
    names: Vec<String>,
    /// Output rows and columns of a product.
    shape: Option<(u32, u32)>,
    body: KernelBody,
}

/// A subject in both orders.
struct OrderEstimate {
    name: String,
    shape: Option<(u32, u32)>,
    site: Site,
    /// Estimates in µs, activations first and weights first; `None` if the compiler refuses it.
    latency_us: [Option<f64>; 2],
}

/// The estimates of a model.
struct OrderTable(Vec<OrderEstimate>);

/// Estimates both orders of every product of a layer, and of the kernels with these products, at every chunk for every
/// platform; returns a table.
pub(crate) fn orders(
    inquirer: &Inquirer<'_>,
    platforms: &[NpuPlatform],
) -> Result<String, CompileError> {
    if platforms.is_empty() {
        return Err(CompileError::NothingToAsk {
            expected: "NPU platforms",
        });
    }
    let plan = inquirer.plan;
    let subjects = subjects(plan);
    let sites: Vec<(&Subject, Site)> = subjects
        .iter()
        .flat_map(|subject| {
            let chunks = plan.chunk_tokens.iter();
            let sites = chunks.flat_map(|tokens| platforms.iter().map(|npu| (*tokens, *npu)));
            sites.map(move |site| (subject, site))
        })
        .collect();
    let inquiries = sites
        .iter()
        .flat_map(|(subject, site)| both_orders(&subject.names.join(", "), &subject.body, *site));
    let replies = inquirer.ask(&inquiries.collect::<Vec<_>>())?;
    let (pairs, _) = replies.as_chunks::<2>();
    let estimates = sites.iter().zip(pairs);
    let estimates = estimates.map(|((subject, site), pair)| OrderEstimate {
        name: subject.names.join(", "),
        shape: subject.shape,
        site: *site,
        latency_us: latencies_us(pair),
    });
    Ok(OrderTable(estimates.collect()).to_string())
}

/// For each kernel, the products that are faster with weights first, each estimated separately.
pub(crate) fn weights_first(
    inquirer: &Inquirer<'_>,
    kernels: &[(&KernelBody, Site)],
) -> Result<Vec<WeightsFirst>, CompileError> {
    let mut numbers = Vec::new();
    let mut inquiries = Vec::new();
    for (index, (body, site)) in kernels.iter().enumerate() {
        let linears = body.ops.iter().filter_map(|op| Linear::of(&op.op));
        for (number, linear) in linears.enumerate() {
            numbers.push((index, number));
            let body = kernel(&[linear], None);
            inquiries.extend(both_orders("product", &body, *site));
        }
    }
    let replies = inquirer.ask(&inquiries)?;
    let (pairs, _) = replies.as_chunks::<2>();
    let mut found = vec![WeightsFirst::NONE; kernels.len()];
    for ((index, number), pair) in numbers.into_iter().zip(pairs) {
        if let [Some(activations_us), Some(weights_us)] = latencies_us(pair)
            && weights_us < activations_us
            && let Some(found) = found.get_mut(index)
        {
            *found = found.with(number);
        }
    }
    Ok(found)
}

/// A kernel with activations first in all products, and with weights first.
fn both_orders(name: &str, body: &KernelBody, (tokens, platform): Site) -> [Inquiry; 2] {
    [WeightsFirst::NONE, WeightsFirst::ALL].map(|weights_first| Inquiry {
        name: format!("{name} {tokens} for NPU {platform}"),
        body: body.clone(),
        tokens,
        weights_first,
        platform,
    })
}

fn latencies_us(pair: &[Result<Reply, NpuError>; 2]) -> [Option<f64>; 2] {
    pair.each_ref()
        .map(|reply| reply.as_ref().ok().and_then(|reply| reply.latency_us))
}

/// The distinct products of layers, and the kernels that have them.
fn subjects(plan: &Plan) -> Vec<Subject> {
    let mut products: Vec<(Linear, Vec<String>)> = Vec::new();
    let mut kernels = Vec::new();
    let bodies = plan.heg.kernels.iter();
    for body in bodies.filter(|body| matches!(body.group, Group::Qkv | Group::Ffn)) {
        for op in &body.ops {
            let Some(linear) = Linear::of(&op.op) else {
                continue;
            };
            match products.iter_mut().find(|(known, _)| *known == linear) {
                Some((_, names)) if names.contains(&op.name) => {}
                Some((_, names)) => names.push(op.name.clone()),
                None => products.push((linear, vec![op.name.clone()])),
            }
        }
        kernels.push(Subject {
            names: vec![format!("kernel {}", body.name)],
            shape: None,
            body: body.clone(),
        });
    }
    let products = products.into_iter().map(|(linear, names)| Subject {
        names,
        shape: Some((linear.rows(), linear.columns())),
        body: kernel(&[linear], None),
    });
    products.chain(kernels).collect()
}

impl OrderEstimate {
    /// Latency with weights first relative to that with activations first.
    fn ratio(&self) -> Option<f64> {
        let [activations_us, weights_us] = self.latency_us;
        Some(weights_us? / activations_us?)
    }
}

impl fmt::Display for OrderTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<24} {:>13} {:>6} {:>8} {:>12} {:>12} {:>7}",
            "product", "shape", "tokens", "platform", "x·Wᵀ, µs", "(W·xᵀ)ᵀ, µs", "ratio"
        )?;
        let us = |us: Option<f64>| us.map_or_else(|| "refused".to_owned(), |us| format!("{us:.1}"));
        for estimate in &self.0 {
            let (shape, (tokens, platform)) = (estimate.shape, estimate.site);
            let shape =
                shape.map_or_else(String::new, |(rows, columns)| format!("{rows}×{columns}"));
            let [activations, weights] = estimate.latency_us.map(us);
            let ratio = estimate.ratio();
            let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            writeln!(
                f,
                "{:<24} {shape:>13} {:>6} {:>8} {activations:>12} {weights:>12} {ratio:>7}",
                estimate.name, tokens, platform
            )?;
        }
        let ratios: Vec<f64> = self.0.iter().filter_map(OrderEstimate::ratio).collect();
        let faster = ratios.iter().filter(|ratio| **ratio < 1.0).count();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        writeln!(
            f,
            "weights first are faster in {faster} of {}; the least ratio is {least:.2}",
            ratios.len()
        )
    }
}
