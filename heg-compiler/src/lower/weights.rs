//! The form of a weight in an IR: constant or input, floats or integers with scales and centres.

use heg_artifacts::manifest::{Binding, ElementType};
use heg_spec::{GroupColumns, WeightForm};

use super::Lowering;
use super::xml::{Dim, Ir, Wire};
use crate::graph::{Param, ParamKind};

/// A weight within an IR.
pub(super) struct Weight {
    pub(super) values: Wire,
    /// Present for integers.
    pub(super) affine: Option<Affine>,
    pub(super) binding: Binding,
}

/// The values of a weight's integers: `scale · q + centre`, or `scale · q`.
pub(super) struct Affine {
    /// One factor per row: a column before the product (constants), a row after it (inputs). For groups, one per group,
    /// as [rows, groups, 1].
    pub(super) scales: Wire,
    /// One term per row, as a row, if integers are centred. For groups, as [rows, groups].
    pub(super) centres: Option<Wire>,
}

/// Hands out a kernel's weights in order, numbering sections as the runtime does.
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
        let (values, rest) = sections(param, self.lowering);
        let values = self.section(ir, values);
        let mut rest = rest.into_iter();
        let mut take = || Some(self.section(ir, rest.next()?));
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

    fn section(&mut self, ir: &mut Ir<'_>, section: WeightSection) -> Wire {
        let index = self.sections;
        self.sections += 1;
        let WeightSection {
            name,
            element,
            shape,
        } = section;
        match self.lowering.binding {
            Binding::Constant => ir.weight(&name, index, element, &shape),
            Binding::Input => {
                let shape = shape.into_iter().map(Dim::Fixed).collect();
                ir.parameter(&name, element, shape)
            }
        }
    }
}

/// A stored section of a weight, in the form that an IR takes.
pub(super) struct WeightSection {
    pub(super) name: String,
    pub(super) element: ElementType,
    pub(super) shape: Vec<u32>,
}

/// The sections of a weight, in the order in which the runtime numbers them: values; scales and centres. For 4-bit
/// integers, columns are [groups, columns of a group].
pub(super) fn sections(param: &Param, lowering: Lowering) -> (WeightSection, Vec<WeightSection>) {
    let element = stored_element(param.kind, lowering.weights);
    let section = |suffix: &str, element, shape| WeightSection {
        name: format!("{}{suffix}", param.slot),
        element,
        shape,
    };
    let (shape, of_integers) = match (element, param.shape.as_slice()) {
        (ElementType::I8, [rows, _]) => {
            let scales = match lowering.binding {
                Binding::Constant => vec![*rows, 1],
                Binding::Input => vec![1, *rows],
            };
            let shapes = (ElementType::F32, scales, vec![1, *rows]);
            (param.shape.clone(), Some(shapes))
        }
        (ElementType::I4 | ElementType::U4, [rows, columns]) => {
            let group = group_columns(param.kind, lowering.weights).map_or(1, GroupColumns::count);
            let groups = columns / group;
            let shapes = (
                ElementType::F16,
                vec![*rows, groups, 1],
                vec![*rows, groups],
            );
            (vec![*rows, groups, group], Some(shapes))
        }
        _ => (param.shape.clone(), None),
    };
    let mut rest = Vec::new();
    if let Some((element, scales, centres)) = of_integers {
        rest.push(section(".scale", element, scales));
        if is_centred(param.kind, lowering.weights) {
            rest.push(section(".centre", element, centres));
        }
    }
    (section("", element, shape), rest)
}

/// Element type of a weight's stored form.
pub(crate) fn stored_element(kind: ParamKind, form: WeightForm) -> ElementType {
    match (kind, form) {
        (ParamKind::Vector, _) | (_, WeightForm::F32) => ElementType::F32,
        (ParamKind::Matrix | ParamKind::Table, WeightForm::F16) => ElementType::F16,
        (_, WeightForm::W8A16) | (ParamKind::Table, WeightForm::W4A16 { .. }) => ElementType::I8,
        (ParamKind::Matrix, WeightForm::W4A16 { symmetric, .. }) => match symmetric {
            true => ElementType::I4,
            false => ElementType::U4,
        },
    }
}

/// Columns of a weight's groups, if its columns are in groups.
pub(crate) fn group_columns(kind: ParamKind, form: WeightForm) -> Option<GroupColumns> {
    match (kind, form) {
        (ParamKind::Matrix, WeightForm::W4A16 { group, .. }) => Some(group),
        _ => None,
    }
}

/// Whether a weight's integers have centres.
pub(crate) fn is_centred(kind: ParamKind, form: WeightForm) -> bool {
    match (kind, form) {
        (ParamKind::Table, WeightForm::W8A16 | WeightForm::W4A16 { .. }) => true,
        (ParamKind::Matrix, WeightForm::W4A16 { symmetric, .. }) => !symmetric,
        _ => false,
    }
}
