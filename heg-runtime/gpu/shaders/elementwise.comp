#version 460
// What depends on single elements. a: x, gate or first term, b: up or second term, c: out, d: state. n: rows, stride of
// a, stride of b, stride of out. s: factor or cap.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/functions.glsl"
#include "include/rows.glsl"

const uint COPY = 0, SCALE = 1, ADD = 2, SOFT_CAP = 3, SILU = 4, GELU = 5, GELU_TANH = 6;

float value(uint row, uint i) {
    precise float x = f32(args.a, row * args.n[1] + i);
    precise float y = x;
    if (OPERATION == SCALE) y = x * args.s[0];
    if (OPERATION == SOFT_CAP) y = tangent(quotient(x, args.s[0])) * args.s[0];
    if (OPERATION == ADD) y = fused(f32(args.b, row * args.n[2] + i), args.s[0], x);
    if (OPERATION == SILU) y = silu(x) * f32(args.b, row * args.n[2] + i);
    if (OPERATION == GELU) y = gelu(x) * f32(args.b, row * args.n[2] + i);
    if (OPERATION == GELU_TANH) y = gelu_tanh(x) * f32(args.b, row * args.n[2] + i);
    return y;
}

void main() {
    write_shared_row(args.n[0], args.c, args.n[3], args.d);
}
