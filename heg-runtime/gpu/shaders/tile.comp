#version 460
// Many operands times a matrix of integers whose rows are whole groups and begin at multiples of 16 bytes: 256 invocations
// compute a tile of 16 · ROWS rows and 64 outputs, ROWS times 4 each. Digits and weights of some groups of 32 columns pass
// through shared memory, and a group's totals are added once it is complete. Arguments as in product.glsl.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/product.glsl"
#include "include/integers.glsl"
layout(local_size_x = 256) in;

const uint STEP = DIGITS == 1 ? 2 : 1; // groups at a time
const uint TALL = 16 * ROWS, WIDE = 64;
// Quads of a row in shared memory, with one that has it read from other banks than its neighbours.
const uint X_LINE = STEP * DIGITS * 2 + 1, W_LINE = STEP * 2 + 1;
shared uvec4 digits[TALL * X_LINE];
shared uvec4 weights[WIDE * W_LINE];
shared float row_scales[TALL * STEP];
shared float row_sums[ELEMENT == U4 ? TALL * STEP : 1];
shared float scales[ELEMENT == I8 ? 1 : WIDE * STEP];
shared float centres[ELEMENT == U4 ? WIDE * STEP : 1];

// Quads that the invocations bring of a step.
const uint X_QUADS = STEP * DIGITS * 2, W_QUADS = ELEMENT == I8 ? STEP * 2 : STEP;
uvec4 next_digits, next_weights;
float next_row_scale, next_row_sum, next_scale, next_centre;

// Reads this invocation's share of the groups from `first` on.
void load(uint first_row, uint first_output, uint first) {
    uint me = gl_LocalInvocationIndex, rows = args.n[0];
    if (me < TALL * X_QUADS) {
        uint row = min(first_row + me / X_QUADS, rows - 1), g = first + me % X_QUADS / (2 * DIGITS);
        if (g < G) next_digits = Quads(args.d).v[(row * G + first) * DIGITS * 2 + me % X_QUADS];
    }
    if (me < WIDE * W_QUADS) {
        uint output_ = min(first_output + me / W_QUADS, args.n[1] - 1), g = first + me % W_QUADS / (W_QUADS / STEP);
        if (g < G) next_weights = Quads(args.a).v[(output_ * G + first) * (W_QUADS / STEP) + me % W_QUADS];
    }
    if (me < TALL * STEP) {
        uint row = min(first_row + me / STEP, rows - 1), g = first + me % STEP;
        if (g < G) {
            next_row_scale = f32(args.d, scales_of(rows) + row * G + g);
            if (ELEMENT == U4) next_row_sum = f32(args.d, scales_of(rows) + (rows + row) * G + g);
        }
    }
    if (ELEMENT != I8 && me < WIDE * STEP) {
        uint output_ = min(first_output + me / STEP, args.n[1] - 1), g = first + me % STEP;
        if (g < G) {
            next_scale = scale_of_group(output_, g);
            if (ELEMENT == U4) next_centre = centre_of_group(output_, g);
        }
    }
}

// Puts what was read where all have it.
void store() {
    uint me = gl_LocalInvocationIndex;
    if (me < TALL * X_QUADS) digits[me / X_QUADS * X_LINE + me % X_QUADS] = next_digits;
    if (me < WIDE * W_QUADS) {
        if (ELEMENT == I8) {
            weights[me / W_QUADS * W_LINE + me % W_QUADS] = next_weights;
        } else {
            uint at = me / W_QUADS * W_LINE + me % W_QUADS * 2;
            weights[at] = low_nibbles(next_weights);
            weights[at + 1] = high_nibbles(next_weights);
        }
    }
    if (me < TALL * STEP) {
        row_scales[me] = next_row_scale;
        if (ELEMENT == U4) row_sums[me] = next_row_sum;
    }
    if (ELEMENT != I8 && me < WIDE * STEP) {
        scales[me] = next_scale;
        if (ELEMENT == U4) centres[me] = next_centre;
    }
}

void main() {
    uint me = gl_LocalInvocationIndex, across = me % 16, down = me / 16, rows = args.n[0], outputs = args.n[1];
    uint first_output = gl_WorkGroupID.x * WIDE, first_row = gl_WorkGroupID.y * TALL;
    precise float sums[ROWS * 4];
    [[unroll]] for (uint i = 0; i < ROWS * 4; i++) sums[i] = 0.0;
    load(first_row, first_output, 0);
    for (uint first = 0; first < G; first += STEP) {
        store();
        barrier();
        load(first_row, first_output, first + STEP);
        for (uint step = 0; step < STEP && first + step < G; step++) {
            int totals[ROWS * 4];
            [[unroll]] for (uint i = 0; i < ROWS * 4; i++) totals[i] = 0;
            [[unroll]] for (uint digit = 0; digit < DIGITS; digit++) {
                if (digit > 0) {
                    [[unroll]] for (uint i = 0; i < ROWS * 4; i++) totals[i] *= 255;
                }
                [[unroll]] for (uint half_ = 0; half_ < 2; half_++) {
                    uvec4 w[4];
                    [[unroll]] for (uint j = 0; j < 4; j++) w[j] = weights[(across + 16 * j) * W_LINE + step * 2 + half_];
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        uvec4 x = digits[(down + 16 * i) * X_LINE + (step * DIGITS + digit) * 2 + half_];
                        [[unroll]] for (uint j = 0; j < 4; j++) totals[i * 4 + j] = dot16(w[j], x, totals[i * 4 + j]);
                    }
                }
            }
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                uint r = (down + 16 * i) * STEP + step;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    uint o = (across + 16 * j) * STEP + step;
                    precise float by = row_scales[r];
                    if (ELEMENT != I8) by = scales[o] * by;
                    precise float sum = fused(of_total(totals[i * 4 + j]), by, sums[i * 4 + j]);
                    if (ELEMENT == U4) sum = fused(centres[o], row_sums[r], sum);
                    sums[i * 4 + j] = sum;
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = first_row + down + 16 * i;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint output_ = first_output + across + 16 * j;
            if (row < rows && output_ < outputs) {
                put(args.g, row * args.n[2] + output_, finished(scaled(sums[i * 4 + j], output_, row, rows), row, output_));
            }
        }
    }
}
