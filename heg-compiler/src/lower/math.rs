//! Element-wise and shape layers of the IR, as small functions for the operator builders.

use heg_artifacts::manifest::ElementType;

use super::xml::{Dim, Element, Ir, LiteralShape, Wire};

impl Ir<'_> {
    pub(crate) fn add(&mut self, a: &Wire, b: &Wire) -> Wire {
        self.elementwise("Add", a, b)
    }

    pub(crate) fn subtract(&mut self, a: &Wire, b: &Wire) -> Wire {
        self.elementwise("Subtract", a, b)
    }

    pub(crate) fn multiply(&mut self, a: &Wire, b: &Wire) -> Wire {
        self.elementwise("Multiply", a, b)
    }

    pub(crate) fn divide(&mut self, a: &Wire, b: &Wire) -> Wire {
        self.elementwise("Divide", a, b)
    }

    /// `factor · a`; adds no layer if the factor is 1.
    pub(crate) fn times(&mut self, a: &Wire, factor: f32) -> Wire {
        if factor == 1.0 {
            return a.clone();
        }
        let factor = self.float_like(factor, a);
        self.multiply(a, &factor)
    }

    fn elementwise(&mut self, kind: &str, a: &Wire, b: &Wire) -> Wire {
        let shape = broadcast(&a.shape, &b.shape);
        self.op(
            kind,
            "opset1",
            "auto_broadcast=\"numpy\"",
            &[a, b],
            a.element,
            shape,
        )
    }

    pub(crate) fn compare(&mut self, kind: &str, a: &Wire, b: &Wire) -> Wire {
        let shape = broadcast(&a.shape, &b.shape);
        self.op(
            kind,
            "opset1",
            "auto_broadcast=\"numpy\"",
            &[a, b],
            Element::Boolean,
            shape,
        )
    }

    pub(crate) fn both(&mut self, a: &Wire, b: &Wire) -> Wire {
        self.compare("LogicalAnd", a, b)
    }

    pub(crate) fn least(&mut self, a: &Wire, b: &Wire) -> Wire {
        self.elementwise("Minimum", a, b)
    }

    pub(crate) fn select(&mut self, condition: &Wire, yes: &Wire, no: &Wire) -> Wire {
        let shape = condition.shape.clone();
        self.op(
            "Select",
            "opset1",
            "auto_broadcast=\"numpy\"",
            &[condition, yes, no],
            yes.element,
            shape,
        )
    }

    pub(crate) fn unary(&mut self, kind: &str, opset: &str, data: &str, a: &Wire) -> Wire {
        self.op(kind, opset, data, &[a], a.element, a.shape.clone())
    }

    /// Converts the element type; adds no layer if it is already right.
    pub(crate) fn convert(&mut self, a: &Wire, element: impl Into<Element>) -> Wire {
        let element = element.into();
        if a.element == element {
            return a.clone();
        }
        let data = format!("destination_type=\"{}\"", element.name());
        self.op("Convert", "opset1", &data, &[a], element, a.shape.clone())
    }

    /// `a · b` or `a · bᵀ` over the last two dimensions.
    pub(crate) fn matmul(&mut self, a: &Wire, b: &Wire, transpose_b: bool) -> Wire {
        let rank = a.shape.len();
        let batch = broadcast(&a.shape[..rank - 2], &b.shape[..b.shape.len() - 2]);
        let columns = b.shape[b.shape.len() - if transpose_b { 2 } else { 1 }];
        let mut shape = batch;
        shape.extend([a.shape[rank - 2], columns]);
        let data = format!("transpose_a=\"false\" transpose_b=\"{transpose_b}\"");
        self.op("MatMul", "opset1", &data, &[a, b], a.element, shape)
    }

    /// Reshapes to `shape`, in which [`Dim::Dynamic`] copies the input's dimension at that place.
    pub(crate) fn reshape(&mut self, a: &Wire, shape: &[Dim]) -> Wire {
        let pattern: Vec<i64> = shape
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(size) => i64::from(*size),
                Dim::Dynamic => 0,
            })
            .collect();
        let fixed = shape
            .iter()
            .zip(a.shape.iter().map(Some).chain(std::iter::repeat(None)));
        let shape = fixed
            .map(|(dim, input)| match (dim, input) {
                (Dim::Dynamic, Some(input)) => *input,
                (dim, _) => *dim,
            })
            .collect();
        self.reshape_by(a, &pattern, shape)
    }

    /// Reshapes to `shape`, in which a single [`Dim::Dynamic`] is inferred from the others.
    pub(crate) fn fold(&mut self, a: &Wire, shape: &[Dim]) -> Wire {
        let pattern: Vec<i64> = shape
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(size) => i64::from(*size),
                Dim::Dynamic => -1,
            })
            .collect();
        self.reshape_by(a, &pattern, shape.to_vec())
    }

    fn reshape_by(&mut self, a: &Wire, pattern: &[i64], shape: Vec<Dim>) -> Wire {
        let target = self.integers(pattern, LiteralShape::List);
        self.op(
            "Reshape",
            "opset1",
            "special_zero=\"true\"",
            &[a, &target],
            a.element,
            shape,
        )
    }

    pub(crate) fn transpose(&mut self, a: &Wire, order: &[usize]) -> Wire {
        let permutation: Vec<i64> = order.iter().map(|axis| *axis as i64).collect();
        let target = self.integers(&permutation, LiteralShape::List);
        let shape = order.iter().map(|axis| a.shape[*axis]).collect();
        self.op("Transpose", "opset1", "", &[a, &target], a.element, shape)
    }

    pub(crate) fn unsqueeze(&mut self, a: &Wire, axis: usize) -> Wire {
        let target = self.integers(&[axis as i64], LiteralShape::List);
        let mut shape = a.shape.clone();
        shape.insert(axis, Dim::Fixed(1));
        self.op("Unsqueeze", "opset1", "", &[a, &target], a.element, shape)
    }

    /// Splits the last dimension into parts of the given sizes; adds no layer if there is one part.
    pub(crate) fn split(&mut self, a: &Wire, sizes: &[u32]) -> Vec<Wire> {
        if sizes.len() == 1 {
            return vec![a.clone()];
        }
        let axis = self.integers(&[a.shape.len() as i64 - 1], LiteralShape::Scalar);
        let lengths: Vec<i64> = sizes.iter().map(|size| i64::from(*size)).collect();
        let lengths = self.integers(&lengths, LiteralShape::List);
        let outputs: Vec<_> = sizes
            .iter()
            .map(|size| {
                let mut shape = a.shape.clone();
                shape.pop();
                shape.push(Dim::Fixed(*size));
                (a.element, shape)
            })
            .collect();
        self.op_many("VariadicSplit", "opset1", &[a, &axis, &lengths], &outputs)
    }

    /// Joins along the last dimension, to `width`; adds no layer if there is one part.
    pub(crate) fn concat(&mut self, parts: &[&Wire], width: u32) -> Wire {
        if let [whole] = parts {
            return (*whole).clone();
        }
        let mut shape = parts[0].shape.clone();
        let axis = shape.len() - 1;
        shape[axis] = Dim::Fixed(width);
        self.op(
            "Concat",
            "opset1",
            &format!("axis=\"{axis}\""),
            parts,
            parts[0].element,
            shape,
        )
    }

    /// Mean over the last dimension, which is kept with size 1.
    pub(crate) fn mean(&mut self, a: &Wire) -> Wire {
        self.reduce("ReduceMean", a)
    }

    /// Sum over the last dimension, which is kept with size 1.
    pub(crate) fn sum(&mut self, a: &Wire) -> Wire {
        self.reduce("ReduceSum", a)
    }

    fn reduce(&mut self, kind: &str, a: &Wire) -> Wire {
        let axis = self.integers(&[-1], LiteralShape::List);
        let mut shape = a.shape.clone();
        shape.pop();
        shape.push(Dim::Fixed(1));
        self.op(
            kind,
            "opset1",
            "keep_dims=\"true\"",
            &[a, &axis],
            a.element,
            shape,
        )
    }

    /// Number of rows of a two-dimensional wire, as an i64 scalar.
    pub(crate) fn row_count(&mut self, a: &Wire) -> Wire {
        let rank = vec![Dim::Fixed(a.shape.len() as u32)];
        let shape = self.op(
            "ShapeOf",
            "opset3",
            "output_type=\"i64\"",
            &[a],
            ElementType::I64,
            rank,
        );
        let (index, axis) = (
            self.integers(&[0], LiteralShape::Scalar),
            self.integers(&[0], LiteralShape::Scalar),
        );
        self.op(
            "Gather",
            "opset8",
            "batch_dims=\"0\"",
            &[&shape, &index, &axis],
            ElementType::I64,
            Vec::new(),
        )
    }

    /// `0, 1, …, count − 1` as i64.
    pub(crate) fn range(&mut self, count: &Wire, dim: Dim) -> Wire {
        let (start, step) = (
            self.integers(&[0], LiteralShape::Scalar),
            self.integers(&[1], LiteralShape::Scalar),
        );
        self.op(
            "Range",
            "opset4",
            "output_type=\"i64\"",
            &[&start, count, &step],
            ElementType::I64,
            vec![dim],
        )
    }
}

/// NumPy's broadcasting: dimensions are aligned at the end, and a 1 takes the other's size.
fn broadcast(a: &[Dim], b: &[Dim]) -> Vec<Dim> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let lead = long.len() - short.len();
    long.iter()
        .enumerate()
        .map(
            |(axis, dim)| match (axis.checked_sub(lead).map(|i| short[i]), dim) {
                (Some(other), Dim::Fixed(1)) => other,
                _ => *dim,
            },
        )
        .collect()
}
