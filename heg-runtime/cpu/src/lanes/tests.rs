//! Every method of every implementation against the portable one, bit for bit.

use super::*;
use proptest::prelude::*;

/// Operands of all methods.
#[derive(Debug, Clone, Copy)]
struct EveryMethod {
    a: [f32; LANES],
    b: [f32; LANES],
    c: [f32; LANES],
    exponents: [f32; LANES],
    halves: [u16; LANES],
    integers: [i8; LANES],
    count: usize,
    byte_count: usize,
}

/// Sentinel behind stored elements, which must stay.
const UNTOUCHED: u16 = 0x4321;

/// Results by method name: the bits of all lanes.
type Results = Vec<(&'static str, Vec<u32>)>;

fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN } else { x }.to_bits()
}

/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn stored<L: Lanes>(lanes: L) -> Vec<u32> {
    let mut to = [0.0; LANES];
    // SAFETY: there is room for all lanes.
    unsafe { lanes.store(to.as_mut_ptr()) };
    to.into_iter().map(bits).collect()
}

impl EveryMethod {
    /// # Safety
    ///
    /// See [`Lanes`].
    #[inline(always)]
    unsafe fn loads<L: Lanes>(&self, results: &mut Results) {
        let (halves, integers, count) = (self.halves.as_ptr(), self.integers.as_ptr(), self.count);
        // SAFETY: all arrays have 16 elements, and the count is at most 16.
        unsafe {
            results.push(("splat", stored(L::splat(self.a[0]))));
            results.push(("load", stored(L::load(self.a.as_ptr()))));
            results.push(("load_first", stored(L::load_first(self.a.as_ptr(), count))));
            results.push(("load_bf16", stored(L::load_bf16(halves))));
            results.push(("load_bf16_first", stored(L::load_bf16_first(halves, count))));
            results.push(("load_f16", stored(L::load_f16(halves))));
            results.push(("load_f16_first", stored(L::load_f16_first(halves, count))));
            results.push(("load_i8_first", stored(L::load_i8_first(integers, count))));
            let bytes = L::load_bytes(self.a.as_ptr().cast(), self.byte_count);
            results.push(("load_bytes", stored(bytes)));
            let [lower, upper] = L::load(self.a.as_ptr()).widen_bf16();
            results.push(("widen_bf16, lower", stored(lower)));
            results.push(("widen_bf16, upper", stored(upper)));
        }
    }

    /// # Safety
    ///
    /// See [`Lanes`].
    #[inline(always)]
    unsafe fn stores<L: Lanes>(&self, a: L, results: &mut Results) {
        let mut first = [f32::from(UNTOUCHED); LANES];
        let mut halves = [UNTOUCHED; LANES];
        let mut eighths = [0; LANES];
        // SAFETY: both arrays have 16 elements, and the count is at most 16.
        unsafe {
            a.store_first(first.as_mut_ptr(), self.count);
            a.store_bf16_first(halves.as_mut_ptr(), self.count);
            L::load_i8_first(self.integers.as_ptr(), self.count)
                .mul(L::splat(1.0 / 8.0))
                .store_i16(eighths.as_mut_ptr());
        }
        let eighths = eighths.into_iter().map(|x| i32::from(x) as u32);
        results.push(("store_i16", eighths.collect()));
        results.push(("store_first", first.into_iter().map(bits).collect()));
        results.push((
            "store_bf16_first",
            halves.into_iter().map(u32::from).collect(),
        ));
    }
}

impl Kernel for EveryMethod {
    type Output = Results;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> Results {
        let mut results = Results::new();
        // SAFETY: all arrays have 16 elements, and the count is at most 16.
        unsafe {
            let (a, b, c) = (
                L::load(self.a.as_ptr()),
                L::load(self.b.as_ptr()),
                L::load(self.c.as_ptr()),
            );
            self.loads::<L>(&mut results);
            self.stores(a, &mut results);
            results.push(("add", stored(a.add(b))));
            results.push(("sub", stored(a.sub(b))));
            results.push(("mul", stored(a.mul(b))));
            results.push(("div", stored(a.div(b))));
            results.push(("mul_add", stored(a.mul_add(b, c))));
            results.push(("max", stored(a.max(b))));
            results.push(("min", stored(a.min(b))));
            results.push(("abs", stored(a.abs())));
            results.push(("round", stored(a.round())));
            let exponents = L::load(self.exponents.as_ptr());
            results.push(("times_power", stored(a.times_power(exponents))));
            results.push(("first_or", stored(a.first_or(self.count, b))));
            let (lower, upper) = a.interleave(b);
            results.push(("interleave, lower", stored(lower)));
            results.push(("interleave, upper", stored(upper)));
            results.push(("sum", vec![bits(a.sum())]));
            results.push(("largest", vec![bits(a.largest())]));
        }
        results
    }
}

/// Finite numbers: arbitrary, denormal, zeros of both signs, small halves, ties of bf16.
fn number() -> impl Strategy<Value = f32> {
    let arbitrary = any::<u32>().prop_map(f32::from_bits);
    let denormal = (any::<bool>(), 0..1u32 << 23)
        .prop_map(|(negative, fraction)| f32::from_bits(u32::from(negative) << 31 | fraction));
    let halves = (-9i8..9).prop_map(|x| f32::from(x) * 0.5);
    let zero = any::<bool>().prop_map(|negative| if negative { -0.0 } else { 0.0 });
    // Halfway between two bf16, or one bit off.
    let ties = (any::<u16>(), 0x7FFFu32..0x8002)
        .prop_map(|(upper, lower)| f32::from_bits(u32::from(upper) << 16 | lower));
    prop_oneof![4 => arbitrary, 1 => denormal, 2 => halves, 1 => zero, 2 => ties, 3 => -2.0f32..2.0]
        .prop_filter("finite", |x| x.is_finite())
}

fn numbers() -> impl Strategy<Value = [f32; LANES]> {
    proptest::array::uniform16(number())
}

fn every_method() -> impl Strategy<Value = EveryMethod> {
    let exponents = proptest::array::uniform16((-126i8..=127).prop_map(f32::from));
    let halves = proptest::array::uniform16(
        any::<u16>().prop_filter("finite", |x| half::f16::from_bits(*x).is_finite()),
    );
    let integers = proptest::array::uniform16(any::<i8>());
    let all = (
        numbers(),
        numbers(),
        numbers(),
        exponents,
        halves,
        integers,
        0..=LANES,
        0..=4 * LANES,
    );
    all.prop_map(
        |(a, b, c, exponents, halves, integers, count, byte_count)| EveryMethod {
            a,
            b,
            c,
            exponents,
            halves,
            integers,
            count,
            byte_count,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_form_gives_the_bits_of_the_portable_one(methods in every_method()) {
        // SAFETY: the portable form needs no instructions.
        let expected = unsafe { run(Isa::Portable, methods) };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            // SAFETY: `is_available` said that the machine has the instructions.
            let results = unsafe { run(isa, methods) };
            for (result, expected) in results.iter().zip(&expected) {
                prop_assert_eq!(result, expected, "{}", isa);
            }
        }
    }
}

#[test]
fn the_portable_form_rounds_and_sums_as_documented() {
    let mut methods = EveryMethod {
        a: std::array::from_fn(|lane| lane as f32 + 0.5),
        b: [3.0; LANES],
        c: [-1.0; LANES],
        exponents: [-2.0; LANES],
        halves: [0x3F80; LANES],
        integers: [-7; LANES],
        count: 5,
        byte_count: 6,
    };
    methods.a[1] = 1.0 + f32::EPSILON;
    // SAFETY: the portable form needs no instructions.
    let results = unsafe { run(Isa::Portable, methods) };
    let lane = |name: &str, lane: usize| {
        let found = results.iter().find(|(method, _)| *method == name);
        f32::from_bits(found.expect("a method").1[lane])
    };
    assert_eq!(lane("mul_add", 0), 0.5);
    assert_eq!(lane("round", 0), 0.0);
    assert_eq!(lane("round", 3), 4.0);
    assert_eq!(lane("times_power", 7), 7.5 / 4.0);
    assert_eq!(lane("first_or", 4), 4.5);
    assert_eq!(lane("first_or", 5), 3.0);
    assert_eq!(lane("load_bf16_first", 4), 1.0);
    assert_eq!(lane("load_bf16_first", 5), 0.0);
    assert_eq!(lane("load_i8_first", 4), -7.0);
    assert_eq!(lane("store_first", 5), f32::from(UNTOUCHED));
    assert_eq!(lane("largest", 0), 15.5);
    assert_eq!(lane("sum", 0), 127.5);
}
