// Weights of a matrix of integers by groups of 32 columns, and operands as rows.glsl writes them.
const uint G = (WIDTH + 31) / 32;

// Four bytes from any byte on.
uint unaligned(Words m, uint at) {
    uint word = at / 4, shift = at % 4 * 8;
    if (shift == 0) return m.w[word];
    return m.w[word] >> shift | m.w[word + 1] << (32 - shift);
}

// The eight words of a group of a matrix row; what lies behind the row is multiplied by zeros.
void load_weights(uint output_, uint g, out uint w[8]) {
    if (ELEMENT == I8) {
        uint at = output_ * WIDTH + g * 32;
        for (uint i = 0; i < 8; i++) {
            w[i] = 0;
            if (WIDTH % 32 == 0 || g * 32 + i * 4 < WIDTH) {
                w[i] = WIDTH % 4 == 0 ? args.a.w[at / 4 + i] : unaligned(args.a, at + i * 4);
            }
        }
    } else {
        uint at = output_ * (WIDTH / 8) + g * 4;
        for (uint i = 0; i < 4; i++) {
            uint both = args.a.w[at + i];
            uint low = both & 0x0f0f0f0fu, high = (both >> 4) & 0x0f0f0f0fu;
            if (ELEMENT == I4) {
                low |= (low & 0x08080808u) * 30u;
                high |= (high & 0x08080808u) * 30u;
            }
            w[i] = low;
            w[4 + i] = high;
        }
    }
}

// The low halves of bytes, and the high ones, as bytes.
uvec4 low_nibbles(uvec4 both) {
    uvec4 low = both & 0x0f0f0f0fu;
    return ELEMENT == I4 ? low | (low & 0x08080808u) * 30u : low;
}
uvec4 high_nibbles(uvec4 both) { return low_nibbles(both >> 4); }

// The scale of a group of a matrix row of halves of bytes, and its centre.
float scale_of_group(uint output_, uint g) { return from_f16(half_word(args.b, (output_ * WIDTH + g * 32) / COLUMNS)); }
float centre_of_group(uint output_, uint g) { return from_f16(half_word(args.c, (output_ * WIDTH + g * 32) / COLUMNS)); }

// A sum, and sixteen products of bytes.
int dot16(uvec4 a, uvec4 b, int sum) {
    sum += dot4(a.x, b.x);
    sum += dot4(a.y, b.y);
    sum += dot4(a.z, b.z);
    return sum + dot4(a.w, b.w);
}

// A group's total as a float. Of one digit it is below 2^22, where a sum with 1.5 · 2^23 has it in the last bits: exact,
// and faster than a conversion.
float of_total(int total) {
    if (DIGITS > 1) return float(total);
    precise float x = uintBitsToFloat(0x4b400000u + uint(total)) - 12582912.0;
    return x;
}

uint scales_of(uint rows) { return rows * G * 8 * DIGITS; }

// The exact total of a group.
int total_of(uint w[8], uint row, uint g) {
    int total = 0;
    for (uint digit = 0; digit < DIGITS; digit++) {
        uint at = ((row * G + g) * DIGITS + digit) * 8;
        total *= 255;
        for (uint i = 0; i < 8; i++) total += dot4(w[i], args.d.w[at + i]);
    }
    return total;
}

// A group's total, scaled, behind the sum of those before it.
float add_group(int total, uint output_, uint row, uint rows, uint g, float sum) {
    uint at = scales_of(rows) + row * G + g;
    precise float scale = f32(args.d, at);
    if (ELEMENT == I8) return fused(float(total), scale, sum);
    scale = scale_of_group(output_, g) * scale;
    precise float y = fused(float(total), scale, sum);
    if (ELEMENT == U4) y = fused(centre_of_group(output_, g), f32(args.d, at + rows * G), y);
    return y;
}

// The sum of a row: of its groups, in ascending order.
float sum_of_row(uint row, uint rows) {
    precise float sum = 0.0;
    for (uint g = 0; g < G; g++) sum = sum + f32(args.d, scales_of(rows) + (rows + row) * G + g);
    return sum;
}

float scaled(float sum, uint output_, uint row, uint rows) {
    precise float y = sum;
    if (ELEMENT == I8) {
        y = y * f32(args.b, output_);
        if ((args.n[4] & CENTRES) != 0) {
            y = fused(f32(args.c, output_), sum_of_row(row, rows), y);
        }
    }
    return y;
}
