//! Figures of the kernels on this machine, beside a plain read of the same bytes.

use super::{Bits, IntegerProduct, Line, Panel, Rounded, integer_product, round_row};
use crate::Isa;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Threads that work at once.
const THREADS: usize = 2;

/// Bytes of a matrix, more of which than caches hold, and of the piece of it that a thread takes at a time.
const MATRIX: usize = 16 << 20;
const PIECE: usize = 1 << 20;
const MATRICES: usize = 8;

/// Alignment of matrices, as in a bundle.
const ALIGNMENT: usize = 64;

/// Widths of the matrices of Llama-3.2-1B, and how many pieces it has of them.
const WIDTHS: [(usize, usize); 2] = [(2048, 922), (8192, 256)];

/// What is measured.
#[derive(Clone, Copy)]
enum Work {
    Read,
    Product(Isa, Bits, usize),
}

/// Weights of matrices, each taken by a width of its own at a time.
struct Weights<'a>(&'a [i8]);

impl Weights<'_> {
    /// Microseconds that `work` takes on a piece of a matrix, the first quartile over all pieces: others on the machine
    /// disturb some, not all.
    fn quartile(&self, work: impl Fn(usize, Range<usize>, &mut Panel) + Sync) -> f64 {
        let next = AtomicUsize::new(0);
        let pieces = || {
            let mut panel = Panel::new();
            let mut times = Vec::new();
            loop {
                let first = next.fetch_add(PIECE, Ordering::Relaxed);
                if first >= self.0.len() {
                    return times;
                }
                let piece = first % MATRIX..first % MATRIX + PIECE;
                let start = Instant::now();
                work(first / MATRIX, piece, &mut panel);
                times.push(start.elapsed().as_secs_f64() * 1.0e6);
            }
        };
        let mut times: Vec<f64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(pieces)).collect();
            let times = threads.into_iter().map(|thread| thread.join().unwrap());
            times.flatten().collect()
        });
        quartile(&mut times)
    }

    /// The same of one kind of work on matrices of one width.
    fn measure(&self, work: Work, width: usize) -> f64 {
        let Work::Product(isa, bits, rows) = work else {
            return self.quartile(|matrix, piece, _| {
                std::hint::black_box(sum(&self.0[matrix * MATRIX..][piece]));
            });
        };
        let form = Rounded { width, bits };
        let mut operand = vec![Line([0; 64]); form.bytes(rows).div_ceil(64)];
        let x: Vec<f32> = (0..width).map(|i| (i % 1013) as f32 - 500.0).collect();
        for row in 0..rows {
            // SAFETY: both have the form.
            unsafe {
                round_row(
                    isa,
                    form,
                    rows,
                    row,
                    x.as_ptr(),
                    operand.as_mut_ptr().cast(),
                )
            };
        }
        let scales = vec![1.0e-3; MATRIX / width];
        let mut out = vec![1.0_f32; rows * scales.len() * MATRICES];
        let product = IntegerProduct {
            weights: self.0.as_ptr(),
            scales: scales.as_ptr(),
            form,
            operand: operand.as_ptr().cast(),
            rows,
            bias: None,
            residual: None,
            out: out.as_mut_ptr(),
            out_stride: scales.len(),
        };
        self.quartile(|matrix, piece, panel| {
            let outputs = piece.start / width..piece.end / width;
            let product = &product;
            let product = IntegerProduct {
                weights: self.0[matrix * MATRIX..].as_ptr(),
                out: product.out.wrapping_add(matrix * rows * scales.len()),
                ..*product
            };
            // SAFETY: all have the outputs of the matrix, of which results have a place of their own.
            unsafe { integer_product(isa, &product, outputs, panel) };
        })
    }
}

/// A plain read.
fn sum(bytes: &[i8]) -> u64 {
    let (eights, _) = bytes.as_chunks::<8>();
    let numbers = eights
        .iter()
        .map(|eight| u64::from_ne_bytes(eight.map(i8::cast_unsigned)));
    numbers.fold(0, u64::wrapping_add)
}

fn quartile(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// Of the environment: `HEG_RATES_ROWS`, numbers of rows, and `HEG_RATES_ISAS`, instruction sets; separated by commas.
#[test]
#[ignore = "prints figures"]
fn product_rates() {
    let list = |name: &str, default: &str| {
        let list = std::env::var(name).unwrap_or_else(|_| default.to_owned());
        list.split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let rows = list("HEG_RATES_ROWS", "1,2,4,8,16,32,64,256");
    let isas = list("HEG_RATES_ISAS", Isa::best().name());
    let mut works = vec![Work::Read];
    for isa in Isa::ALL
        .into_iter()
        .filter(|isa| isas.iter().any(|name| name == isa.name()))
    {
        for bits in [Bits::Eight, Bits::Sixteen] {
            works.extend(
                rows.iter()
                    .map(|rows| Work::Product(isa, bits, rows.parse().unwrap())),
            );
        }
    }
    let weights =
        (0..MATRICES * MATRIX + ALIGNMENT).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as i8);
    let weights: Vec<_> = weights.collect();
    let aligned = weights.as_ptr().align_offset(ALIGNMENT);
    let weights = Weights(&weights[aligned..][..MATRICES * MATRIX]);
    let mut times = vec![[const { Vec::new() }; WIDTHS.len()]; works.len()];
    for _ in 0..7 {
        for (work, times) in works.iter().zip(&mut times) {
            for ((width, _), times) in WIDTHS.iter().zip(times) {
                times.push(weights.measure(*work, *width));
            }
        }
    }
    for (work, mut times) in works.into_iter().zip(times) {
        let widths = WIDTHS.iter().zip(&mut times);
        let total = widths.map(|((_, pieces), times)| *pieces as f64 * quartile(times));
        let milliseconds = total.sum::<f64>() / THREADS as f64 * 1.0e-3;
        let bytes = WIDTHS
            .iter()
            .map(|(_, pieces)| pieces * PIECE)
            .sum::<usize>() as f64;
        let [short, long] = times.map(|mut times| quartile(&mut times));
        let rate = bytes * 1.0e-6 / milliseconds;
        print!("{milliseconds:6.1} ms ({short:.0} and {long:.0} µs a piece), {rate:4.1} GB/s: ");
        match work {
            Work::Read => println!("read"),
            Work::Product(isa, bits, rows) => {
                let operations = rate * 2.0e-3 * rows as f64;
                println!("{isa}, {bits:?}, {rows} rows, {operations:.2} TOPS");
            }
        }
    }
}
