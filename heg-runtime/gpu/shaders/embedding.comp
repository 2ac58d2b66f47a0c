#version 460
// Rows of the embedding table. a: table, b: scales, c: out, d: state, e: centres. n: rows, 1 scales | 2 centres, -, stride
// of out. s: factor.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/rows.glsl"

float value(uint row, uint i) {
    uint token = token_of(args.d, row);
    precise float factor = args.s[0];
    if ((args.n[1] & 1u) != 0) factor = factor * f32(args.b, token);
    precise float y = element(args.a, token * WIDTH + i) * factor;
    if (ELEMENT == I8) {
        precise float centre = 0.0;
        if ((args.n[1] & 2u) != 0) centre = args.s[0] * f32(args.e, token);
        y = y + centre;
    }
    return y;
}

void main() {
    write_shared_row(args.n[0], args.c, args.n[3], args.d);
}
