#version 460
// The product of one operand, as a wide GPU reads it: 32 invocations read a matrix row side by side, one group of 32
// columns each; totals pass through shared memory, and each invocation sums those of one output in ascending order.
// Arguments as in product.glsl.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/product.glsl"
#include "include/integers.glsl"
layout(local_size_x = 32) in;

shared int totals[32 * 33];

void main() {
    uint me = gl_LocalInvocationIndex, first = gl_WorkGroupID.x * 32, outputs = args.n[1];
    uint output_ = min(first + me, outputs - 1);
    precise float sum = 0.0;
    for (uint slice = 0; slice < G; slice += 32) {
        uint g = slice + me;
        for (uint o = 0; o < 32; o++) {
            int total = 0;
            if (g < G) {
                uint w[8];
                load_weights(min(first + o, outputs - 1), g, w);
                total = total_of(w, 0, g);
            }
            totals[o * 33 + me] = total;
        }
        barrier();
        uint here = min(G - slice, 32u);
        for (uint k = 0; k < here; k++) sum = add_group(totals[me * 33 + k], output_, 0, 1, slice + k, sum);
        barrier();
    }
    if (first + me >= outputs) return;
    put(args.g, output_, finished(scaled(sum, output_, 0, 1), 0, output_));
}
