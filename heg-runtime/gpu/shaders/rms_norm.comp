#version 460
// x / rms(x) · (offset + weight), part by part. a: x, b: weight, c: out, d: state. n: rows, stride of x, -, stride of
// out. s: eps, offset.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#define THREADS_OF_CONSTANT
#include "include/rows.glsl"

const uint PART = WIDTH / GROUPS;
const uint CHUNK = 8 * THREADS; // columns that are loaded at a time, of a row that is normed as one
// They lie where an operand's groups are rounded later, if there are any.
shared float loaded[GROUPS == 1 && FORM != OPERAND ? CHUNK : 1];
shared float lanes[THREADS];
shared float factors[GROUPS];

void keep(uint i, float x) {
    if (FORM == OPERAND) staged[i] = x;
    else loaded[i] = x;
}

float kept(uint i) { return FORM == OPERAND ? staged[i] : loaded[i]; }

float value(uint row, uint i) {
    precise float x = f32(args.a, row * args.n[1] + i) * factors[i / PART];
    precise float w = f32(args.b, i % PART) + args.s[1];
    precise float y = x * w;
    return y;
}

// The sum of the squares of every sixteenth element of a part.
float squares(uint row, uint part, uint lane) {
    precise float sum = 0.0;
    if (GROUPS == 1) {
        for (uint chunk = 0; chunk < WIDTH; chunk += CHUNK) {
            uint end = min(WIDTH - chunk, CHUNK);
            barrier();
            for (uint i = gl_LocalInvocationIndex; i < end; i += THREADS) {
                keep(i, f32(args.a, row * args.n[1] + chunk + i));
            }
            barrier();
            if (part == 0 && end == CHUNK) {
                for (uint i = lane; i < CHUNK; i += 128) {
                    float x[8];
                    [[unroll]] for (uint k = 0; k < 8; k++) x[k] = kept(i + 16 * k);
                    [[unroll]] for (uint k = 0; k < 8; k++) sum = fused(x[k], x[k], sum);
                }
            } else if (part == 0) {
                for (uint i = lane; i < end; i += 16) sum = fused(kept(i), kept(i), sum);
            }
        }
    } else if (part < GROUPS) {
        for (uint i = lane; i < PART; i += 16) {
            float x = f32(args.a, row * args.n[1] + part * PART + i);
            sum = fused(x, x, sum);
        }
    }
    return sum;
}

void main() {
    uint row = gl_WorkGroupID.x, me = gl_LocalInvocationIndex, lane = me % 16;
    // Some parts at a time, sixteen lanes each.
    for (uint first = 0; first < GROUPS; first += THREADS / 16) {
        uint part = first + me / 16;
        lanes[me] = squares(row, part, lane);
        for (uint half_ = 8; half_ > 0; half_ /= 2) {
            barrier();
            precise float both;
            if (lane < half_) both = lanes[me] + lanes[me + half_];
            barrier();
            if (lane < half_) lanes[me] = both;
        }
        barrier();
        if (lane == 0 && part < GROUPS) {
            precise float mean = quotient(lanes[me], float(PART));
            precise float shifted = mean + args.s[0];
            factors[part] = quotient(1.0, root(shifted));
        }
        barrier();
    }
    write_row(row, args.n[0], args.c, args.n[3], args.d);
}
