//! The steps for division and square root (`shaders/include/arithmetic.glsl`) against a driver as bad as Vulkan allows:
//! division off by 2.5 units in the last place, reciprocals and square roots by 3.

use libm::fmaf;

use crate::noise::Noise;

fn off(x: f32, noise: &mut Noise) -> f32 {
    let by = noise.bits() % 7;
    f32::from_bits(x.to_bits().wrapping_add(by as u32).wrapping_sub(3))
}

fn quotient(a: f32, b: f32, noise: &mut Noise) -> f32 {
    let mut q = off(a / b, noise);
    let mut y = off(1.0 / b, noise);
    y = fmaf(fmaf(-b, y, 1.0), y, y);
    y = fmaf(fmaf(-b, y, 1.0), y, y);
    q = fmaf(fmaf(-b, q, a), y, q);
    fmaf(fmaf(-b, q, a), y, q)
}

fn root(x: f32, noise: &mut Noise) -> f32 {
    let s = off(x.sqrt(), noise);
    let h = off(0.5 / s, noise);
    let s = fmaf(fmaf(-s, s, x), h, s);
    let (up, down) = (
        f32::from_bits(s.to_bits() + 1),
        f32::from_bits(s.to_bits() - 1),
    );
    match (fmaf(-s, up, x) > 0.0, fmaf(-s, down, x) <= 0.0) {
        (true, _) => up,
        (_, true) => down,
        _ => s,
    }
}

#[test]
fn steps_give_what_is_rounded_once() {
    let mut noise = Noise::new(5);
    let (mut quotients, mut roots) = (0, 0);
    // Divisors and dividends as scales have them (127 / x and x / 127): every 16th mantissa. All 2^23 were tried once.
    for mantissa in (0..1_u32 << 23).step_by(16) {
        let x = f32::from_bits(127 << 23 | mantissa);
        for (a, b) in [(127.0, x), (x, 127.0), (1.0, x), (noise.number() + 2.0, x)] {
            quotients += u32::from(quotient(a, b, &mut noise).to_bits() != (a / b).to_bits());
        }
        for x in [x, 2.0 * x] {
            roots += u32::from(root(x, &mut noise).to_bits() != x.sqrt().to_bits());
        }
    }
    assert_eq!((quotients, roots), (0, 0));
}
