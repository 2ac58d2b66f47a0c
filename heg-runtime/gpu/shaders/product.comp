#version 460
// Operands times a matrix of integers: one output and up to ROWS rows for each invocation, totals of 32 columns in
// ascending order. Arguments as in product.glsl.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/product.glsl"
#include "include/integers.glsl"
layout(local_size_x = 64) in;

void main() {
    uint output_ = gl_GlobalInvocationID.x, first = gl_WorkGroupID.y * ROWS, rows = args.n[0];
    if (output_ >= args.n[1]) return;
    precise float sums[ROWS];
    for (uint r = 0; r < ROWS; r++) sums[r] = 0.0;
    for (uint g = 0; g < G; g++) {
        uint w[8];
        load_weights(output_, g, w);
        for (uint r = 0; r < ROWS; r++) {
            uint row = min(first + r, rows - 1);
            sums[r] = add_group(total_of(w, row, g), output_, row, rows, g, sums[r]);
        }
    }
    for (uint r = 0; r < ROWS && first + r < rows; r++) {
        uint row = first + r;
        float y = finished(scaled(sums[r], output_, row, rows), row, output_);
        put(args.g, row * args.n[2] + output_, y);
    }
}
