//! The static variants of a kernel on a device: latency is a step function of c (HeteroLLM §3.2, "stage
//! performance"), because a call is padded to the smallest chunk that admits it.
//!
//! Over the sizes of chunks and buckets themselves the latency is regressed, so that a chunk that was compiled but not
//! measured has a latency too: linear between its neighbours, in proportion to the work beyond them.

use heg_artifacts::manifest::{ShapeClass, Work};

use super::{CallShape, LatencyTable, TableError};

/// Latency of any call of a kernel that has static variants only.
#[derive(Debug, Clone, PartialEq)]
pub struct Steps {
    /// Compiled sizes, ascending.
    sizes: Vec<CallShape>,
    table: LatencyTable,
}

impl Steps {
    /// Makes the steps from the latencies in µs of the measured variants, and the shapes of all variants. Leaves out a
    /// dynamic shape. Errors: [`TableError`], also if nothing was measured.
    pub fn new(
        measured: impl IntoIterator<Item = (ShapeClass, f64)>,
        compiled: impl IntoIterator<Item = ShapeClass>,
    ) -> Result<Self, TableError> {
        let measured = measured.into_iter();
        let mut entries: Vec<(CallShape, f64)> = measured
            .filter_map(|(shape, latency_us)| Some((CallShape::of_static(shape)?, latency_us)))
            .collect();
        entries.sort_by_key(|entry| entry.0);
        let mut sizes: Vec<CallShape> = compiled
            .into_iter()
            .filter_map(CallShape::of_static)
            .collect();
        sizes.sort();
        Ok(Self {
            sizes,
            table: LatencyTable::new(entries)?,
        })
    }

    /// The measured sizes with their latencies in µs.
    pub fn table(&self) -> &LatencyTable {
        &self.table
    }

    /// Latency of a call in µs; `None` if no variant admits it.
    pub fn latency_us(&self, work: &Work, call: CallShape) -> Option<f64> {
        let admits = |size: &&CallShape| {
            call.tokens <= size.tokens && (size.context == 0 || call.context <= size.context)
        };
        let size = self.sizes.iter().find(admits)?;
        Some(self.size_us(work, *size))
    }

    /// Latency in µs of a variant of this chunk and bucket, whether compiled or not.
    pub fn size_us(&self, work: &Work, size: CallShape) -> f64 {
        self.table.latency_us(size, |at| at.flops(work))
    }

    /// This regression without one of the measured sizes; `None` if no size would be left.
    pub fn without(&self, size: CallShape) -> Option<Self> {
        let entries = self.table.entries().iter();
        let rest = entries.filter(|entry| entry.0 != size).copied().collect();
        Some(Self {
            sizes: self.sizes.clone(),
            table: LatencyTable::new(rest).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::Term;

    use super::*;

    fn work() -> Work {
        let flops = vec![Term {
            factor: 1000,
            tokens: 1,
            context: 0,
        }];
        Work {
            flops,
            bytes: Vec::new(),
        }
    }

    /// The 3B `ffn` on platform 3720 (DESIGN §4.4), in µs.
    const MEASURED: [(u32, f64); 6] = [
        (16, 1950.0),
        (32, 2220.0),
        (64, 4220.0),
        (128, 8090.0),
        (256, 15_700.0),
        (512, 36_400.0),
    ];

    fn steps() -> Steps {
        let shape = |(tokens, latency_us)| (ShapeClass::Static { tokens }, latency_us);
        let compiled = MEASURED.map(|entry| shape(entry).0);
        Steps::new(MEASURED.map(shape), compiled).unwrap()
    }

    fn call(tokens: u32) -> CallShape {
        CallShape { tokens, context: 0 }
    }

    #[test]
    fn a_call_takes_as_long_as_its_chunk() {
        let steps = steps();
        for (tokens, expected) in [
            (1, 1950.0),
            (16, 1950.0),
            (17, 2220.0),
            (33, 4220.0),
            (64, 4220.0),
        ] {
            assert_eq!(steps.latency_us(&work(), call(tokens)), Some(expected));
        }
        assert_eq!(steps.latency_us(&work(), call(513)), None);
    }

    #[test]
    fn a_chunk_left_out_is_regressed() {
        let steps = steps();
        for (tokens, expected) in &MEASURED[2..5] {
            let without = steps.without(call(*tokens)).unwrap();
            let found = without.size_us(&work(), call(*tokens));
            assert!((found / expected - 1.0).abs() < 0.15, "{tokens}: {found}");
        }
    }

    #[test]
    fn attention_takes_the_smallest_bucket_that_admits_it() {
        let shape = |context| ShapeClass::Bucket {
            tokens: 64,
            context,
        };
        let measured = [(shape(512), 3300.0), (shape(2048), 8900.0)];
        let compiled = [shape(512), shape(1024), shape(2048)];
        let steps = Steps::new(measured, compiled).unwrap();
        let at = |context| {
            steps.latency_us(
                &work(),
                CallShape {
                    tokens: 10,
                    context,
                },
            )
        };
        assert_eq!(at(100), Some(3300.0));
        assert_eq!(at(1025), Some(8900.0));
        assert!(at(600).is_some_and(|us| (us - 5166.7).abs() < 1.0));
        assert_eq!(at(4096), None);
    }
}
