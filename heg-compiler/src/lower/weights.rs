//! How a weight enters an IR: constant or input, plain or int8 with scales.

use heg_artifacts::manifest::{Binding, ElementType};
use heg_spec::WeightForm;

use super::Lowering;
use super::xml::{Dim, Ir, Wire};
use crate::graph::{Param, ParamKind};

/// A weight within an IR.
pub(super) struct Weight {
    pub(super) values: Wire,
    /// One factor per row, present for int8.
    pub(super) scales: Option<Wire>,
    pub(super) binding: Binding,
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
        let scales = (element == ElementType::I8).then(|| {
            let name = format!("{}.scale", param.slot);
            // A column before the product (constants), a row after it (inputs).
            let shape = match self.lowering.binding {
                Binding::Constant => [param.shape[0], 1],
                Binding::Input => [1, param.shape[0]],
            };
            self.section(ir, &name, ElementType::F32, &shape)
        });
        Weight {
            values,
            scales,
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

/// Element type in which a weight is stored.
pub(crate) fn stored_element(kind: ParamKind, form: WeightForm) -> ElementType {
    match (kind, form) {
        (ParamKind::Vector, _) | (ParamKind::Matrix, WeightForm::F32) => ElementType::F32,
        (ParamKind::Matrix, WeightForm::F16) => ElementType::F16,
        (ParamKind::Matrix, WeightForm::W8A16) => ElementType::I8,
    }
}
