// Arithmetic whose bits are those of the CPU programs. Everything is `precise` (NoContraction), so that only what is
// written as a fused multiply-add is one.

// How a driver computes: chosen by the probe.
layout(constant_id = 0) const uint FMA = 0;  // 0: the instruction rounds once; 1: emulated
layout(constant_id = 1) const uint DIV = 0;  // 0: division is correctly rounded; 1: by steps
layout(constant_id = 2) const uint SQRT = 0; // likewise

// a + b = sum + error, exactly.
void two_sum(float a, float b, out precise float sum, out precise float error) {
    sum = a + b;
    precise float bb = sum - a;
    precise float aa = sum - bb;
    precise float db = b - bb;
    precise float da = a - aa;
    error = da + db;
}

// a · b + c with one rounding (Boldo, Melquiond: a sum rounded to odd), if nothing is below 2^-102 or above 2^115.
float emulated(float a, float b, float c) {
    precise float p = a * b;
    precise float sa = a * 4097.0;
    precise float ta = sa - a;
    precise float ah = sa - ta;
    precise float al = a - ah;
    precise float sb = b * 4097.0;
    precise float tb = sb - b;
    precise float bh = sb - tb;
    precise float bl = b - bh;
    precise float e = ah * bh;
    e = e - p;
    precise float m = ah * bl;
    e = e + m;
    m = al * bh;
    e = e + m;
    m = al * bl;
    e = e + m;
    precise float th, tl, vh, vl, z, odd;
    two_sum(c, e, th, tl);
    two_sum(p, th, vh, vl);
    two_sum(tl, vl, z, odd);
    uint bits = floatBitsToUint(z);
    // Away from zero if the error has the sign of z, else towards zero. Selected, not branched to: this is everywhere.
    uint rounded = mix(bits - 1u, bits + 1u, (odd > 0.0) == (z > 0.0));
    bits = mix(bits, rounded, (odd != 0.0) && ((bits & 1u) == 0u));
    z = uintBitsToFloat(bits);
    precise float sum = vh + z;
    // Of a product that is zero the steps above lose the sign.
    precise float plain = p + c;
    precise float result = mix(sum, plain, p == 0.0);
    return result;
}

float fused(float a, float b, float c) {
    precise float result;
    if (FMA == 0u) { result = fma(a, b, c); } else { result = emulated(a, b, c); }
    return result;
}

// a / b, correctly rounded.
float quotient(float a, float b) {
    if (DIV == 1u) {
        // Reciprocals of the largest numbers are too small to be corrected, those of the smallest too large.
        float size = abs(b);
        precise float by = size > 1.0e30 ? uintBitsToFloat(0x1f800000u) : 1.0; // 2^-64
        by = size < 1.0e-30 ? uintBitsToFloat(0x5f800000u) : by; // 2^64
        a = a * by;
        b = b * by;
    }
    precise float q = a / b;
    if (DIV == 1u) {
        precise float y = 1.0 / b;
        precise float e = fused(-b, y, 1.0);
        y = fused(e, y, y);
        e = fused(-b, y, 1.0);
        y = fused(e, y, y);
        precise float r = fused(-b, q, a);
        q = fused(r, y, q);
        r = fused(-b, q, a);
        q = fused(r, y, q);
    }
    return q;
}

// The square root, correctly rounded.
float root(float x) {
    precise float s = sqrt(x);
    if (SQRT == 1u && x != 0.0) {
        precise float h = 0.5 / s;
        precise float r = fused(-s, s, x);
        s = fused(r, h, s);
        // Within one unit now. Tuckerman: it is right if s · (s − unit) < x ≤ s · (s + unit).
        precise float up = uintBitsToFloat(floatBitsToUint(s) + 1u);
        precise float down = uintBitsToFloat(floatBitsToUint(s) - 1u);
        if (fused(-s, up, x) > 0.0) { s = up; } else if (fused(-s, down, x) <= 0.0) { s = down; }
    }
    return s;
}

// The nearest whole number, ties to even, below 2^22: floats above 2^23 are one apart.
float nearest(float x) {
    precise float shifted = x + 12582912.0;
    precise float n = shifted - 12582912.0;
    return n;
}

int nearest_int(float x) {
    precise float shifted = x + 12582912.0;
    return int(floatBitsToUint(shifted)) - 0x4b400000;
}

float power_of_two(float n) { return uintBitsToFloat(uint(int(n) + 127) << 23); }

#ifdef PACKED_DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);
#endif

// The product of four signed bytes with four others, summed.
int dot4(uint a, uint b) {
#ifdef PACKED_DOT
    return packed_dot(a, b, 0);
#else
    ivec4 shift = ivec4(24, 16, 8, 0);
    ivec4 x = (ivec4(int(a)) << shift) >> 24;
    ivec4 y = (ivec4(int(b)) << shift) >> 24;
    ivec4 p = x * y;
    return p.x + p.y + p.z + p.w;
#endif
}
