#version 460
// Rows of f32 times a matrix: four outputs of a row for each workgroup, sixteen lanes each, which are summed as a tree.
// Arguments as in product.glsl; n[5]: stride of the rows.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/product.glsl"
layout(local_size_x = 64) in;

shared float lanes[64];
shared float row_lanes[64];

float weight(uint output_, uint i) {
    if (ELEMENT != I4 && ELEMENT != U4) return element(args.a, output_ * WIDTH + i);
    uint at = output_ * WIDTH + i, group = at / COLUMNS;
    int q = int(nibble_of(args.a, at));
    if (ELEMENT == I4) q = (q ^ 8) - 8;
    precise float w = float(q) * from_f16(half_word(args.b, group));
    w = w + (ELEMENT == U4 ? from_f16(half_word(args.c, group)) : 0.0);
    return w;
}

void main() {
    uint me = gl_LocalInvocationIndex, lane = me % 16, row = gl_WorkGroupID.y;
    uint wanted = gl_WorkGroupID.x * 4 + me / 16, output_ = min(wanted, args.n[1] - 1);
    precise float sum = 0.0, row_sum = 0.0;
    for (uint i = lane; i < WIDTH; i += 16) {
        float x = f32(args.d, row * args.n[5] + i);
        sum = fused(weight(output_, i), x, sum);
        row_sum = row_sum + x;
    }
    lanes[me] = sum;
    row_lanes[me] = row_sum;
    for (uint half_ = 8; half_ > 0; half_ /= 2) {
        barrier();
        precise float both, both_of_row;
        if (lane < half_) {
            both = lanes[me] + lanes[me + half_];
            both_of_row = row_lanes[me] + row_lanes[me + half_];
        }
        barrier();
        if (lane < half_) {
            lanes[me] = both;
            row_lanes[me] = both_of_row;
        }
    }
    if (lane != 0 || wanted >= args.n[1]) return;
    precise float y = lanes[me];
    if (ELEMENT == I8) {
        y = y * f32(args.b, output_);
        if ((args.n[4] & CENTRES) != 0) y = fused(f32(args.c, output_), row_lanes[me], y);
    }
    put(args.g, row * args.n[2] + output_, finished(y, row, output_));
}
