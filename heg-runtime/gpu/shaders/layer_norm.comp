#version 460
// (x − mean) / deviation · weight + bias. a: x, b: weight, c: out, d: state, e: bias. n: rows, stride of x, 1: a bias,
// stride of out. s: eps.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/rows.glsl"

shared float lanes[16];
shared float mean_of_row;
shared float factor_of_row;

float value(uint row, uint i) {
    precise float x = f32(args.a, row * args.n[1] + i) - mean_of_row;
    x = x * factor_of_row;
    precise float y = fused(x, f32(args.b, i), args.n[2] != 0 ? f32(args.e, i) : 0.0);
    return y;
}

// The sum of all lanes, in the first.
void sum_lanes(uint me) {
    for (uint half_ = 8; half_ > 0; half_ /= 2) {
        barrier();
        precise float both;
        if (me < half_) both = lanes[me] + lanes[me + half_];
        barrier();
        if (me < half_) lanes[me] = both;
    }
    barrier();
}

void main() {
    uint row = gl_WorkGroupID.x, me = gl_LocalInvocationIndex;
    if (me < 16) {
        precise float sum = 0.0;
        for (uint i = me; i < WIDTH; i += 16) sum = sum + f32(args.a, row * args.n[1] + i);
        lanes[me] = sum;
    }
    sum_lanes(me);
    if (me == 0) mean_of_row = quotient(lanes[0], float(WIDTH));
    barrier();
    if (me < 16) {
        precise float sum = 0.0;
        for (uint i = me; i < WIDTH; i += 16) {
            precise float x = f32(args.a, row * args.n[1] + i) - mean_of_row;
            sum = fused(x, x, sum);
        }
        lanes[me] = sum;
    }
    sum_lanes(me);
    if (me == 0) {
        precise float shifted = quotient(lanes[0], float(WIDTH)) + args.s[0];
        factor_of_row = quotient(1.0, root(shifted));
    }
    barrier();
    write_row(row, args.n[0], args.c, args.n[3], args.d);
}
