//! Lowering: turns a kernel into OpenVINO IR, for one shape class, weight binding and activation type.
//!
//! There is one builder per operator in `ops` and `attention`; `xml` writes the layers, `math` has the small steps
//! between them. Both weight bindings come from the same builders: they differ only in the source of a weight, and in
//! where its scale is applied (DESIGN §4.2: before the product for plugins that fuse it, after the product for the
//! NPU).

mod attention;
mod document;
#[cfg(test)]
mod ir_tests;
mod literals;
mod math;
mod ops;
#[cfg(test)]
mod ops_tests;
mod verify;
mod weights;
mod xml;

use heg_artifacts::manifest::{Binding, ElementType, Elements, Role, Rows, ShapeClass};
use heg_spec::WeightForm;

use attention::TokenOrder;
pub(crate) use document::IrDocument;
pub(crate) use literals::Literals;
use weights::WeightPort;
pub(crate) use weights::{group_columns, is_centred, stored_element};
use xml::{Dim, Ir, Wire};

use crate::graph::Op;
use crate::heg::{KernelBody, Operand};
use crate::options::Verify;
use crate::verify::BrokenInvariant;

/// The properties that distinguish the variants of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lowering {
    /// The token counts that the variant accepts.
    pub shape: ShapeClass,
    /// The way in which weights reach it.
    pub binding: Binding,
    /// Element type of hidden states and queries.
    pub activations: ElementType,
    /// Element type of keys and values, if it is another.
    pub kv_cache: Option<ElementType>,
    /// Whether its tokens may be a tree: see [`Variant::takes_trees`](heg_artifacts::manifest::Variant::takes_trees).
    pub takes_trees: bool,
    /// Storage form of matrices.
    pub weights: WeightForm,
    /// The products whose weights come first.
    pub weights_first: WeightsFirst,
}

/// The operand of a product that comes first. Both orders give the same numbers; an accelerator may be faster with one
/// of them (HeteroLLM §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperandOrder {
    /// `x · Wᵀ`.
    ActivationsFirst,
    /// `(W · xᵀ)ᵀ`.
    WeightsFirst,
}

/// The products of a kernel whose weights come first, by their number among its linear operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightsFirst(u32);

impl WeightsFirst {
    /// No product.
    pub const NONE: Self = Self(0);
    /// All products.
    pub const ALL: Self = Self(u32::MAX);

    /// Adds one product.
    #[must_use]
    pub fn with(self, product: usize) -> Self {
        Self(self.0 | bit(product))
    }

    pub(crate) fn order(self, product: usize) -> OperandOrder {
        match self.0 & bit(product) {
            0 => OperandOrder::ActivationsFirst,
            _ => OperandOrder::WeightsFirst,
        }
    }
}

/// The product's bit; 0 beyond the number of products that any kernel has.
fn bit(product: usize) -> u32 {
    let product = u32::try_from(product).ok();
    product
        .and_then(|product| 1_u32.checked_shl(product))
        .unwrap_or(0)
}

/// Like [`lower`], with the IR checked against the kernel if `verify` is on.
pub(crate) fn lower_verified(
    kernel: &KernelBody,
    lowering: Lowering,
    literals: &mut Literals,
    verify: Verify,
) -> Result<String, BrokenInvariant> {
    let ir = lower(kernel, lowering, literals);
    if verify.is_on() {
        verify::verify(&ir, kernel, lowering, literals.bytes())?;
    }
    Ok(ir)
}

/// The IR of `kernel` under `lowering`; adds small constants to `literals`.
pub(crate) fn lower(kernel: &KernelBody, lowering: Lowering, literals: &mut Literals) -> String {
    let elements = Elements::new(lowering.activations, lowering.kv_cache);
    let mut ir = Ir::new(literals);
    let mut inputs = Inputs::default();
    for port in &kernel.inputs {
        let wire = ir.parameter(
            role_name(port.role),
            elements.at(port.role),
            shape(port.rows, port.width, lowering),
        );
        inputs.push(port.role, wire);
    }
    if let Some(shape) = tree_shape(lowering) {
        inputs.tree = Some(ir.parameter(TREE, elements.activations, shape));
    }
    let mut weights = WeightPort::new(lowering);
    let mut results: Vec<Wire> = Vec::with_capacity(kernel.ops.len());
    let mut products = 0;
    for body_op in &kernel.ops {
        let operands: Vec<Wire> = body_op
            .operands
            .iter()
            .map(|operand| match operand {
                Operand::Input(index) => inputs.wires[*index].clone(),
                Operand::Op(index) => results[*index].clone(),
            })
            .collect();
        let params: Vec<_> = body_op
            .op
            .params()
            .into_iter()
            .map(|param| weights.take(&mut ir, param))
            .collect();
        let order = lowering.weights_first.order(products);
        products += usize::from(matches!(body_op.op, Op::Linear { .. }));
        let params = (&params[..], order);
        results.push(build(&mut ir, &body_op.op, &operands, params, &inputs));
    }
    for (port, output) in kernel.outputs.iter().zip(&kernel.results) {
        let wire = match output {
            Operand::Input(index) => inputs.wires[*index].clone(),
            Operand::Op(index) => results[*index].clone(),
        };
        let element = elements.at(port.role);
        let wire = match element {
            ElementType::Bf16 => ops::rounded_to_bf16(&mut ir, &wire),
            _ => wire,
        };
        let wire = ir.convert(&wire, element);
        ir.result(role_name(port.role), &wire);
    }
    ir.finish(&kernel.name)
}

/// Activation inputs by position and by role.
#[derive(Default)]
struct Inputs {
    wires: Vec<Wire>,
    roles: Vec<Role>,
    /// Which token sees which, if they may be a tree.
    tree: Option<Wire>,
}

impl Inputs {
    fn push(&mut self, role: Role, wire: Wire) {
        self.roles.push(role);
        self.wires.push(wire);
    }

    fn role(&self, role: Role) -> Option<&Wire> {
        let at = self.roles.iter().position(|known| *known == role)?;
        self.wires.get(at)
    }
}

fn build(
    ir: &mut Ir<'_>,
    op: &Op,
    operands: &[Wire],
    (params, order): (&[weights::Weight], OperandOrder),
    inputs: &Inputs,
) -> Wire {
    match op {
        // The residual stream is an operand of others, never an operator of a kernel.
        Op::Input => operands[0].clone(),
        Op::RmsNorm {
            eps,
            offset,
            groups,
            ..
        } => ops::rms_norm(ir, &operands[0], &params[0], *eps, *offset, *groups),
        Op::LayerNorm { eps, .. } => {
            ops::layer_norm(ir, &operands[0], &params[0], params.get(1), *eps)
        }
        Op::Linear { .. } => {
            let weights = (&params[0], params.get(1));
            ops::linear(ir, &operands[0], weights, order)
        }
        Op::Rope { heads, rotated, .. } => match (inputs.role(Role::Cos), inputs.role(Role::Sin)) {
            (Some(cos), Some(sin)) => ops::rope(ir, &operands[0], cos, sin, *heads, *rotated),
            _ => operands[0].clone(),
        },
        Op::Attention(attributes) => {
            let position = inputs.role(Role::Position).unwrap_or(&operands[0]);
            let order = TokenOrder {
                position,
                tree: inputs.tree.as_ref(),
            };
            attention::attention(ir, operands, order, attributes)
        }
        Op::Activated(activation) => ops::activated(ir, &operands[0], *activation),
        Op::Gated(activation) => ops::gated(ir, &operands[0], &operands[1], *activation),
        Op::Add { b_scale } => {
            let scaled = ir.times(&operands[1], *b_scale);
            ir.add(&operands[0], &scaled)
        }
        Op::Scale { factor } => ir.times(&operands[0], *factor),
        Op::SoftCap { cap } => ops::soft_cap(ir, &operands[0], *cap),
    }
}

fn shape(rows: Rows, width: u32, lowering: Lowering) -> Vec<Dim> {
    let rows = match (rows, lowering.shape) {
        (Rows::One, _) => return vec![Dim::Fixed(1)],
        (Rows::Tokens, class) => class.chunk().map_or(Dim::Dynamic, Dim::Fixed),
        (Rows::Context, class) => class.bucket().map_or(Dim::Dynamic, Dim::Fixed),
    };
    vec![rows, Dim::Fixed(width)]
}

/// Shape of the input that says which token sees which; `None` if a form has none.
fn tree_shape(lowering: Lowering) -> Option<Vec<Dim>> {
    let rows = lowering.shape.chunk().filter(|_| lowering.takes_trees)?;
    Some(vec![Dim::Fixed(rows); 2])
}

/// Name of that input.
const TREE: &str = "tree";

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Hidden => "hidden",
        Role::Cos => "cos",
        Role::Sin => "sin",
        Role::Query => "query",
        Role::Key => "key",
        Role::Value => "value",
        Role::Position => "position",
        Role::Attended => "attended",
        Role::Logits => "logits",
        Role::Vector => "vector",
    }
}
