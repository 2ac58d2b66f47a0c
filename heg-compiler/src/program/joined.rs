//! Finds operators that become one step.

use std::collections::BTreeMap;

use crate::graph::Op;
use crate::heg::{KernelBody, Operand};

/// The operators of a body that become one step.
pub(super) struct Joined {
    /// For each linear operator, the first of those that become one product with it: neighbours over the same rows, or
    /// the operator itself if there are none.
    products: BTreeMap<usize, usize>,
    /// For each linear operator, the sum to which its product is added.
    sums: BTreeMap<usize, usize>,
}

impl Joined {
    pub(super) fn new(body: &KernelBody) -> Self {
        let mut joined = Self {
            products: products(body),
            sums: BTreeMap::new(),
        };
        for (sum, op) in body.ops.iter().enumerate() {
            let (Op::Add { .. }, [a, Operand::Op(product)]) = (&op.op, op.operands.as_slice())
            else {
                continue;
            };
            let is_product = joined.products.contains_key(product);
            if is_product
                && reads(body, Operand::Op(*product)) == 1
                && joined.place(*a) < joined.place(Operand::Op(*product))
            {
                joined.sums.insert(*product, sum);
            }
        }
        joined
    }

    /// The linear operators that become one product with operator `first`, itself included; empty if it is not the
    /// first of them.
    pub(super) fn product(&self, first: usize) -> Vec<usize> {
        let same = self.products.iter().filter(|(_, start)| **start == first);
        same.map(|(linear, _)| *linear).collect()
    }

    /// The sum to which a linear operator's product is added.
    pub(super) fn sum_of(&self, linear: usize) -> Option<usize> {
        self.sums.get(&linear).copied()
    }

    /// Whether an operator is part of another one's step.
    pub(super) fn is_part(&self, op: usize) -> bool {
        let follows = self.products.get(&op).is_some_and(|first| *first != op);
        follows || self.product_of(op).is_some()
    }

    fn product_of(&self, sum: usize) -> Option<usize> {
        let mut sums = self.sums.iter();
        sums.find(|(_, found)| **found == sum)
            .map(|(linear, _)| *linear)
    }

    /// Position at which a value is available, counted in operators of the body, 0 for inputs.
    fn place(&self, value: Operand) -> usize {
        match value {
            Operand::Input(_) => 0,
            Operand::Op(op) => {
                let linear = self.product_of(op).unwrap_or(op);
                1 + self.products.get(&linear).copied().unwrap_or(linear)
            }
        }
    }
}

fn products(body: &KernelBody) -> BTreeMap<usize, usize> {
    let mut products = BTreeMap::new();
    let mut before: Option<(usize, &[Operand])> = None;
    for (index, op) in body.ops.iter().enumerate() {
        before = matches!(op.op, Op::Linear { .. }).then(|| {
            let same = before.filter(|(_, operands)| *operands == op.operands.as_slice());
            let first = same.map_or(index, |(first, _)| first);
            products.insert(index, first);
            (first, op.operands.as_slice())
        });
    }
    products
}

/// Number of reads of a value, as an operand or as a result.
fn reads(body: &KernelBody, value: Operand) -> usize {
    let operands = body.ops.iter().flat_map(|op| &op.operands);
    operands
        .chain(&body.results)
        .filter(|read| **read == value)
        .count()
}
