#version 460
// Rotate-half position embedding of the first ROTATED dimensions of each head; the others are copied. a: x, b: cosines,
// c: out, d: state, e: sines. n: rows, stride of x, -, stride of out.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/rows.glsl"

float value(uint row, uint i) {
    uint within = i % HEAD, half_ = ROTATED / 2, first = row * args.n[1] + i - within;
    if (within >= ROTATED) return f32(args.a, first + within);
    uint angle = within % half_, at = position_of(args.d, row) * half_ + angle;
    float cosine = f32(args.b, at), sine = f32(args.e, at);
    float lower = f32(args.a, first + angle), upper = f32(args.a, first + angle + half_);
    precise float y;
    if (within < half_) {
        precise float m = lower * cosine;
        precise float minus = 0.0 - sine;
        y = fused(upper, minus, m);
    } else {
        precise float m = upper * cosine;
        y = fused(lower, sine, m);
    }
    return y;
}

void main() {
    write_shared_row(args.n[0], args.c, args.n[3], args.d);
}
