#version 460
// Up to ROWS operands times a matrix of integers whose rows are whole groups and begin at multiples of 16 bytes, as a wide
// GPU reads it: 128 invocations read SLICE groups of 32 columns of some matrix rows side by side, each its group of EACH
// rows; totals pass through shared memory, where an invocation for each output and row adds them in ascending order, while
// the next slice is under way. Arguments as in product.glsl.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/product.glsl"
#include "include/integers.glsl"
layout(local_size_x = 128) in;

const uint EACH = 4;
const uint OUTPUTS = EACH * (128 / SLICE);
const uint LINE = SLICE + 1;
shared float totals[ROWS * OUTPUTS * LINE];
shared float scales[ELEMENT == I8 ? 1 : OUTPUTS * LINE];
shared float centres[ELEMENT == U4 ? OUTPUTS * LINE : 1];
shared float row_scales[ROWS * LINE];
shared float row_sums[ELEMENT == U4 ? ROWS * LINE : 1];

uvec4 halves[EACH * 2]; // of the groups that this invocation has read; of half bytes the second is not used
float scale[EACH];
float centre[EACH];

// Reads the group `g` of the matrix rows of this invocation.
void load(uint first, uint g) {
    if (g >= G) return;
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint output_ = min(first + e, args.n[1] - 1);
        if (ELEMENT == I8) {
            halves[2 * e] = Quads(args.a).v[(output_ * G + g) * 2];
            halves[2 * e + 1] = Quads(args.a).v[(output_ * G + g) * 2 + 1];
        } else {
            halves[2 * e] = Quads(args.a).v[output_ * G + g];
            scale[e] = scale_of_group(output_, g);
            if (ELEMENT == U4) centre[e] = centre_of_group(output_, g);
        }
    }
}

// Multiplies what was read with a row's group.
void multiply(uint row, uint r, uint set, uint mine, uint g) {
    int total[EACH];
    [[unroll]] for (uint e = 0; e < EACH; e++) total[e] = 0;
    [[unroll]] for (uint digit = 0; digit < DIGITS; digit++) {
        uint at = ((row * G + g) * DIGITS + digit) * 2;
        uvec4 low = Quads(args.d).v[at], high = Quads(args.d).v[at + 1];
        [[unroll]] for (uint e = 0; e < EACH; e++) {
            uvec4 a = halves[2 * e], b = halves[2 * e + 1];
            if (ELEMENT != I8) {
                b = high_nibbles(a);
                a = low_nibbles(a);
            }
            total[e] = dot16(b, high, dot16(a, low, total[e] * 255));
        }
    }
    [[unroll]] for (uint e = 0; e < EACH; e++) totals[(r * OUTPUTS + set * EACH + e) * LINE + mine] = of_total(total[e]);
}

// Brings the scales of rows, and their sums, of a slice.
void load_scales(uint first_row, uint slice) {
    uint rows = args.n[0];
    for (uint i = gl_LocalInvocationIndex; i < ROWS * SLICE; i += 128) {
        uint r = i / SLICE, g = slice + i % SLICE, row = min(first_row + r, rows - 1);
        if (g < G) {
            row_scales[r * LINE + i % SLICE] = f32(args.d, scales_of(rows) + row * G + g);
            if (ELEMENT == U4) row_sums[r * LINE + i % SLICE] = f32(args.d, scales_of(rows) + (rows + row) * G + g);
        }
    }
}

// Adds totals of one output and row to those before: COUNT from the `k`th on, which are read before the first is added.
#define ADD(COUNT) \
    { \
        float total[COUNT], by[COUNT], of_weights[COUNT], centre_[COUNT], row_sum[COUNT]; \
        [[unroll]] for (uint u = 0; u < COUNT; u++) { \
            total[u] = totals[(r * OUTPUTS + o) * LINE + k + u]; \
            by[u] = row_scales[r * LINE + k + u]; \
            if (ELEMENT != I8) of_weights[u] = scales[o * LINE + k + u]; \
            if (ELEMENT == U4) centre_[u] = centres[o * LINE + k + u]; \
            if (ELEMENT == U4) row_sum[u] = row_sums[r * LINE + k + u]; \
        } \
        [[unroll]] for (uint u = 0; u < COUNT; u++) { \
            precise float factor = by[u]; \
            if (ELEMENT != I8) factor = of_weights[u] * factor; \
            sum = fused(total[u], factor, sum); \
            if (ELEMENT == U4) sum = fused(centre_[u], row_sum[u], sum); \
        } \
    }

// Adds a slice's totals of one output and row to those before.
float add_slice(uint o, uint r, uint here, float before) {
    precise float sum = before;
    uint k = 0;
    for (; k + 16 <= here; k += 16) ADD(16)
    for (; k < here; k++) ADD(1)
    return sum;
}

void block(uint first, uint first_row) {
    uint me = gl_LocalInvocationIndex, set = me / SLICE, mine = me % SLICE;
    uint rows = args.n[0], outputs = args.n[1], o = me % OUTPUTS, r = me / OUTPUTS;
    precise float sum = 0.0;
    load(first + set * EACH, mine);
    for (uint slice = 0; slice < G; slice += SLICE) {
        uint g = slice + mine;
        if (g < G) {
            [[unroll]] for (uint k = 0; k < ROWS; k++) multiply(min(first_row + k, rows - 1), k, set, mine, g);
            if (ELEMENT != I8) {
                [[unroll]] for (uint e = 0; e < EACH; e++) {
                    scales[(set * EACH + e) * LINE + mine] = scale[e];
                    if (ELEMENT == U4) centres[(set * EACH + e) * LINE + mine] = centre[e];
                }
            }
        }
        load_scales(first_row, slice);
        barrier();
        load(first + set * EACH, g + SLICE);
        if (r < ROWS) sum = add_slice(o, r, min(G - slice, SLICE), sum);
        barrier();
    }
    uint output_ = first + o, row = first_row + r;
    if (r < ROWS && output_ < outputs && row < rows) {
        put(args.g, row * args.n[2] + output_, finished(scaled(sum, output_, row, rows), row, output_));
    }
}

void main() {
    uint lines = (args.n[0] + ROWS - 1) / ROWS, blocks = (args.n[1] + OUTPUTS - 1) / OUTPUTS * lines;
    // Rows come first, so that workgroups that read the same weights run side by side.
    for (uint b = gl_WorkGroupID.x; b < blocks; b += gl_NumWorkGroups.x) block(b / lines * OUTPUTS, b % lines * ROWS);
}
