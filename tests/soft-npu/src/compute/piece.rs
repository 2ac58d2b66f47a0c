//! The computation of a piece of a product: its rows of a matrix, for each of its tokens.

use heg_artifacts::manifest::{Kernel, Port, Role, Rows, RowsPiece, ShapeClass, Work};
use heg_artifacts::program::{
    Buffer, BufferId, BufferPlace, ParameterId, Part, Program, RowForm, Step,
};
use heg_cpu::{Activations, CacheForm, CpuKernel};
use heg_spec::Group;

use super::recipe::{Recipe, RecipePort, RecipeWeight};
use crate::error::SoftNpuError;

impl Recipe {
    /// The recipe of a piece.
    ///
    /// # Errors
    ///
    /// [`SoftNpuError::Compute`] if the program of a single product is refused.
    pub(super) fn of_piece(piece: &RowsPiece) -> Result<Self, SoftNpuError> {
        let kernel = declared(piece);
        let refused = |source| SoftNpuError::Compute {
            kernel: kernel.name.clone(),
            source,
        };
        let program = CpuKernel::new(program(piece), &kernel, CacheForm::F32, Activations::F32);
        let port = |role, width: u32| RecipePort {
            role,
            element: piece.activations,
            rows: piece.tokens as usize,
            width: width as usize,
        };
        Ok(Self {
            program: program.map_err(refused)?,
            shape: ShapeClass::Static {
                tokens: piece.tokens,
            },
            inputs: vec![port(Role::Hidden, piece.form.columns)],
            tree: None,
            weights: vec![RecipeWeight::new(&piece.parameter())],
            outputs: vec![port(Role::Query, piece.rows)],
            kernel: kernel.name,
        })
    }
}

/// A kernel with the ports and the weight of a piece.
fn declared(piece: &RowsPiece) -> Kernel {
    let port = |role, width| Port {
        role,
        rows: Rows::Tokens,
        width,
    };
    let (rows, columns, tokens) = (piece.rows, piece.form.columns, piece.tokens);
    Kernel {
        name: format!("piece-{rows}x{columns}-over-{tokens}"),
        group: Group::Ffn,
        ops: Vec::new(),
        inputs: vec![port(Role::Hidden, columns)],
        outputs: vec![port(Role::Query, rows)],
        parameters: vec![piece.parameter()],
        work: Work::default(),
        variants: Vec::new(),
    }
}

/// The product of the operand with the rows.
fn program(piece: &RowsPiece) -> Program {
    let buffer = |name: &str, width, form, place| Buffer {
        name: name.to_owned(),
        width,
        form,
        place,
    };
    let columns = piece.form.columns;
    let scratch = BufferPlace::Scratch { first: 0 };
    Program {
        buffers: vec![
            buffer("x", columns, RowForm::Plain, BufferPlace::Input(0)),
            buffer("operand", columns, RowForm::Operand, scratch),
            buffer("y", piece.rows, RowForm::Plain, BufferPlace::Output(0)),
        ],
        steps: vec![
            Step::Copy {
                x: BufferId(0),
                out: BufferId(1),
            },
            Step::Product {
                x: BufferId(1),
                parts: vec![Part {
                    weight: ParameterId(0),
                    bias: None,
                    residual: None,
                    out: BufferId(2),
                }],
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::{ElementType, RowsForm};
    use heg_spec::GroupColumns;

    use super::*;

    #[test]
    fn pieces_of_all_forms_have_a_program() {
        for (element, group_columns, centred) in [
            (ElementType::F16, None, false),
            (ElementType::I8, None, false),
            (ElementType::I8, None, true),
            (ElementType::I4, Some(GroupColumns::SMALLEST), false),
            (ElementType::U4, Some(GroupColumns::SMALLEST), true),
        ] {
            let piece = RowsPiece {
                form: RowsForm {
                    element,
                    columns: 64,
                    group_columns,
                    centred,
                },
                rows: 24,
                tokens: 32,
                activations: ElementType::F16,
                blobs: Vec::new(),
            };
            let recipe = Recipe::of_piece(&piece).unwrap();
            assert_eq!(recipe.kernel(), "piece-24x64-over-32");
        }
    }
}
