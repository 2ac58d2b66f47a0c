// Arguments of a shader, and memory as 32-bit words by device address: no 8-bit, 16-bit or 64-bit types are needed.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_EXT_control_flow_attributes : require

// Shapes and forms, overwritten by `specialise`. A shader reads those that it needs.
layout(constant_id = 3) const uint WIDTH = 64;    // elements of a row, columns of a matrix
layout(constant_id = 4) const uint HEAD = 64;     // elements of a head
layout(constant_id = 5) const uint ROWS = 1;      // rows that are multiplied at a time: see the shaders of products
layout(constant_id = 6) const uint FORM = 0;      // form of the rows that are written: see rows.glsl
layout(constant_id = 7) const uint GROUPS = 1;    // parts of a row that are normed apart
layout(constant_id = 8) const uint ELEMENT = 0;   // element type of weights, keys and values: see below
layout(constant_id = 9) const uint OPERATION = 0; // see elementwise.comp
layout(constant_id = 10) const uint DIGITS = 1;   // digits of an operand's integers
layout(constant_id = 11) const uint NIBBLES = 0;  // 1: the operand meets weights of half a byte
layout(constant_id = 12) const uint COLUMNS = 32; // columns that share a scale, of weights of half a byte
layout(constant_id = 13) const uint ROTATED = 64; // dimensions of a head that are rotated
layout(constant_id = 14) const uint SLICE = 64;   // groups of columns at a time: see few_rows.comp
layout(constant_id = 15) const uint QUADS = 0;    // 1: heads of keys and values are whole quads of words

const uint F32 = 0, BF16 = 1, F16 = 2, I8 = 3, I4 = 4, U4 = 5;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint w[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };

layout(push_constant, std430) uniform Args {
    Words a, b, c, d, e, f, g, h;
    uint n[8];
    float s[4];
} args;

// What the state has for each row of a call: see `RowState` of the host.
const uint ROW_WORDS = 8;
uint position_of(Words state, uint row) { return state.w[row * ROW_WORDS]; }
uint cache_row_of(Words state, uint row) { return state.w[row * ROW_WORDS + 1]; }
// The address of the first row of the row's sequence, in the first half of its cache.
uvec2 cache_of(Words state, uint row) { return uvec2(state.w[row * ROW_WORDS + 2], state.w[row * ROW_WORDS + 3]); }
uint half_bytes_of(Words state, uint row) { return state.w[row * ROW_WORDS + 4]; }
uint way_of(Words state, uint row) { return state.w[row * ROW_WORDS + 5]; }
uint way_start_of(Words state, uint row) { return state.w[row * ROW_WORDS + 6]; }
uint token_of(Words state, uint row) { return state.w[row * ROW_WORDS + 7]; }

// The same in another half: keys and values of each layer are two, and arguments have their number in place of an address.
uvec2 half_of(Words state, uint row, Words number) {
    uint high, low, carry, first_high = cache_of(state, row).y;
    umulExtended(half_bytes_of(state, row), uvec2(number).x, high, low);
    low = uaddCarry(low, cache_of(state, row).x, carry);
    return uvec2(low, first_high + high + carry);
}

float f32(Words m, uint i) { return uintBitsToFloat(m.w[i]); }
void put(Words m, uint i, float x) { m.w[i] = floatBitsToUint(x); }

uint half_word(Words m, uint i) { return (m.w[i / 2] >> (i % 2 * 16)) & 0xffffu; }
uint byte_of(Words m, uint i) { return (m.w[i / 4] >> (i % 4 * 8)) & 0xffu; }
uint nibble_of(Words m, uint i) { return (m.w[i / 8] >> (i % 8 * 4)) & 0xfu; }

// A half as f32: exact, by integers, for drivers may flush small halves.
float from_f16(uint bits) {
    uint sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 0u) {
        precise float small = float(mantissa) * uintBitsToFloat(0x33800000u); // 2^-24
        return uintBitsToFloat(floatBitsToUint(small) | sign);
    }
    uint wide = exponent == 31u ? 255u : exponent + 112u;
    return uintBitsToFloat(sign | wide << 23 | mantissa << 13);
}

uint bf16(float x) {
    uint bits = floatBitsToUint(x);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// To the nearest half, ties to even, by integers likewise. What is too large becomes infinite.
uint f16(float x) {
    uint bits = floatBitsToUint(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x47800000u) return sign | (size > 0x7f800000u ? 0x7e00u : 0x7c00u); // from 2^16 on, or no number
    if (size >= 0x38800000u) return sign | (((size + 0xfffu + ((size >> 13) & 1u)) >> 13) - 0x1c000u);
    uint shift = 126u - (size >> 23); // below 2^-14: multiples of 2^-24
    if (shift > 24u) return sign;
    uint mantissa = (size & 0x7fffffu) | 0x800000u, whole = mantissa >> shift;
    uint rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
    return sign | (whole + (rest > tie || (rest == tie && (whole & 1u) == 1u) ? 1u : 0u));
}

// An element of keys, values or a matrix, but of those of half a byte.
float element(Words m, uint i) {
    if (ELEMENT == BF16) return uintBitsToFloat(half_word(m, i) << 16);
    if (ELEMENT == F16) return from_f16(half_word(m, i));
    if (ELEMENT == I8) return float(int(byte_of(m, i) << 24) >> 24);
    return f32(m, i);
}
