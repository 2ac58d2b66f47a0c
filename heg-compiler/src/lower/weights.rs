//! How a weight enters an IR: constant or input, plain or int8 with scales and centres.

use heg_artifacts::manifest::{Binding, ElementType};
use heg_spec::WeightForm;

use super::Lowering;
use super::xml::{Dim, Ir, Wire};
use crate::graph::{Param, ParamKind};

/// A weight within an IR.
pub(super) struct Weight {
    pub(super) values: Wire,
    /// Present for int8.
    pub(super) affine: Option<Affine>,
    pub(super) binding: Binding,
}

/// What the integers of a weight's rows stand for: `scale · q + centre`, or `scale · q`.
pub(super) struct Affine {
    /// One factor per row: a column before the product (constants), a row after it (inputs).
    pub(super) scales: Wire,
    /// One term per row, as a row, where rows are centred.
    pub(super) centres: Option<Wire>,
}

/// Hands out a kernel's weights in order, counting sections as the runtime does.
pub(super) struct WeightPort {
    lowering: Lowering,
    sections: usize,
}

impl WeightPort {
    pub(super) fn new(lowering: Lowering) -> Self {
        Self {
            lowering,
            sections: 0,
        }
    }

    pub(super) fn take(&mut self, ir: &mut Ir<'_>, param: &Param) -> Weight {
        let element = stored_element(param.kind, self.lowering.weights);
        let values = self.section(ir, &param.slot, element, &param.shape);
        let mut of_rows = of_rows(param, self.lowering).into_iter();
        let mut take = || {
            let (name, shape) = of_rows.next()?;
            Some(self.section(ir, &name, ElementType::F32, &shape))
        };
        let affine = take().map(|scales| Affine {
            scales,
            centres: take(),
        });
        Weight {
            values,
            affine,
            binding: self.lowering.binding,
        }
    }

    fn section(
        &mut self,
        ir: &mut Ir<'_>,
        name: &str,
        element: ElementType,
        shape: &[u32],
    ) -> Wire {
        let index = self.sections;
        self.sections += 1;
        match self.lowering.binding {
            Binding::Constant => ir.weight(name, index, element, shape),
            Binding::Input => {
                let shape = shape.iter().copied().map(Dim::Fixed).collect();
                ir.parameter(name, element, shape)
            }
        }
    }
}

/// Names and shapes of the scales and centres that a weight's rows have.
pub(super) fn of_rows(param: &Param, lowering: Lowering) -> Vec<(String, [u32; 2])> {
    let rows = param.shape.first().copied().unwrap_or(1);
    let scales = match lowering.binding {
        Binding::Constant => [rows, 1],
        Binding::Input => [1, rows],
    };
    let mut found = Vec::new();
    if stored_element(param.kind, lowering.weights) == ElementType::I8 {
        found.push((format!("{}.scale", param.slot), scales));
    }
    if is_centred(param.kind, lowering.weights) {
        found.push((format!("{}.centre", param.slot), [1, rows]));
    }
    found
}

/// Element type in which a weight is stored.
pub(crate) fn stored_element(kind: ParamKind, form: WeightForm) -> ElementType {
    match (kind, form) {
        (ParamKind::Vector, _) | (_, WeightForm::F32) => ElementType::F32,
        (ParamKind::Matrix | ParamKind::Table, WeightForm::F16) => ElementType::F16,
        (ParamKind::Matrix | ParamKind::Table, WeightForm::W8A16) => ElementType::I8,
    }
}

/// Whether a weight's rows have centres.
pub(crate) fn is_centred(kind: ParamKind, form: WeightForm) -> bool {
    kind == ParamKind::Table && form == WeightForm::W8A16
}
