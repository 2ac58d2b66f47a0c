// Steps on single rows: one workgroup a row. A shader defines `value(row, column)`; what is not chosen by FORM is not
// compiled. An operand is, for R rows of G groups of 32 columns: digits `[row][group][digit][column]` in 8-bit integers,
// then `[row][group]` in f32, the scales; then the same, the sums of groups; then `[row]` in f32, the sums of rows. For
// weights of half a byte the even columns of a group come before the odd ones, as halves of bytes do.
layout(local_size_x = 64) in;

const uint PLAIN = 0, OPERAND = 1, CACHE_BF16 = 2, CACHE_F32 = 3;
const uint OPERAND_GROUPS = (WIDTH + 31) / 32;
const uint SUMS = FORM == OPERAND ? OPERAND_GROUPS : 1;
shared float group_sums[SUMS];

float value(uint row, uint column);

uint digit_column(uint place) {
    if (NIBBLES == 0) return place;
    return place < 16 ? 2 * place : 2 * place - 31;
}

void write_group(uint row, uint rows, uint g, Words to) {
    precise float x[32];
    uint largest_bits = 0;
    [[dont_unroll]] for (uint i = 0; i < 32; i++) {
        x[i] = g * 32 + i < WIDTH ? value(row, g * 32 + i) : 0.0;
        largest_bits = max(largest_bits, floatBitsToUint(x[i]) & 0x7fffffffu);
    }
    const float steps = DIGITS == 1 ? 127.0 : 32512.0;
    precise float largest = uintBitsToFloat(largest_bits);
    precise float inverse = quotient(steps, largest);
    // Too small to be divided by: everything is zero.
    if ((floatBitsToUint(inverse) & 0x7f800000u) == 0x7f800000u) inverse = 0.0;
    uint at = row * OPERAND_GROUPS + g;
    int sum = 0;
    for (uint w = 0; w < 8; w++) {
        uint high_word = 0, low_word = 0;
        for (uint i = 0; i < 4; i++) {
            precise float scaled = x[digit_column(w * 4 + i)] * inverse;
            int q = nearest_int(scaled);
            sum += q;
            if (DIGITS == 1) {
                high_word |= (uint(q) & 255u) << (8 * i);
            } else {
                precise float above = float(q) * 0.003921569;
                int high = nearest_int(above);
                high_word |= (uint(high) & 255u) << (8 * i);
                low_word |= (uint(q - high * 255) & 255u) << (8 * i);
            }
        }
        to.w[at * 8 * DIGITS + w] = high_word;
        if (DIGITS == 2) to.w[at * 16 + 8 + w] = low_word;
    }
    uint scales = rows * OPERAND_GROUPS * 8 * DIGITS;
    bool finite = largest_bits < 0x7f800000u;
    precise float scale = finite ? quotient(largest, steps) : uintBitsToFloat(0x7fc00000u);
    put(to, scales + at, scale);
    precise float of_group = float(sum) * scale;
    put(to, scales + rows * OPERAND_GROUPS + at, of_group);
    group_sums[g] = of_group;
}

// Rows of the cache go where the state has them, other rows one behind the other.
void write_row(uint row, uint rows, Words to, uint stride, Words state) {
    uint me = gl_LocalInvocationIndex;
    if (FORM == OPERAND) {
        for (uint g = me; g < OPERAND_GROUPS; g += 64) write_group(row, rows, g, to);
        barrier();
        if (me == 0) {
            precise float sum = 0.0;
            for (uint g = 0; g < OPERAND_GROUPS; g++) sum = sum + group_sums[g];
            put(to, rows * OPERAND_GROUPS * (8 * DIGITS + 2) + row, sum);
        }
        return;
    }
    uint target = row;
    if (FORM != PLAIN) target = first_cache_row_of(state, row) + cache_row_of(state, row);
    if (FORM == CACHE_BF16) {
        for (uint i = me; i < WIDTH / 2; i += 64) {
            uint low = bf16(value(row, 2 * i)), high = bf16(value(row, 2 * i + 1));
            to.w[target * (stride / 2) + i] = low | high << 16;
        }
    } else {
        for (uint i = me; i < WIDTH; i += 64) put(to, target * stride + i, value(row, i));
    }
}
