#version 460
// Rows by their numbers, as the head takes them. a: x, b: numbers, c: out. n: rows, stride of x, -, stride of out.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/rows.glsl"

float value(uint row, uint i) {
    return f32(args.a, args.b.w[row] * args.n[1] + i);
}

void main() {
    write_shared_row(args.n[0], args.c, args.n[3], args.d);
}
