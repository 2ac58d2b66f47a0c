#version 460
// What a driver's arithmetic does with given numbers. a: triples, b: results, RESULTS for each. n: count.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
layout(local_size_x = 64) in;

const uint RESULTS = 16;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= args.n[0]) return;
    precise float x = f32(args.a, 3 * i), y = f32(args.a, 3 * i + 1), z = f32(args.a, 3 * i + 2);
    precise float r[RESULTS];
    r[0] = fma(x, y, z);
    r[1] = emulated(x, y, z);
    r[2] = x / y;
    r[3] = quotient(x, y);
    r[4] = sqrt(abs(x));
    r[5] = root(abs(x));
    precise float m = x * y;
    r[6] = m + z;
    r[7] = x + y;
    r[8] = x - y;
    r[9] = m;
    r[10] = m * uintBitsToFloat(0x00800000u); // 2^-126: too small for a normal number
    r[11] = uintBitsToFloat(floatBitsToUint(x) & 0x807fffffu) * uintBitsToFloat(0x4b800000u); // 2^24 times such a one
    r[12] = float(int(floatBitsToUint(x)) >> 3);
    r[13] = float(dot4(floatBitsToUint(x), floatBitsToUint(y)));
    r[14] = float(nearest_int(x));
    r[15] = max(x, y);
    for (uint k = 0; k < RESULTS; k++) put(args.b, RESULTS * i + k, r[k]);
}
