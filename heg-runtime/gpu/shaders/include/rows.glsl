// Steps on single rows, piece by piece: a shader defines `value(row, column)`; what is not chosen by FORM is not compiled.
// An operand is, for R rows of G groups of 32 columns: digits `[row][group][digit][column]` in 8-bit integers, then
// `[row][group]` in f32, the scales; then the same, the sums of groups. For weights of half a byte the even columns of a
// group come before the odd ones, as halves of bytes do.
#ifdef THREADS_OF_CONSTANT
layout(local_size_x = 128, local_size_x_id = 16) in;
#define THREADS gl_WorkGroupSize.x
#else
#define THREADS 64
layout(local_size_x = THREADS) in;
#endif

const uint PLAIN = 0, OPERAND = 1, CACHE_BF16 = 2, CACHE_F32 = 3, CACHE_F16 = 4;
const bool HALVES = FORM == CACHE_BF16 || FORM == CACHE_F16; // two elements a word
const uint OPERAND_GROUPS = (WIDTH + 31) / 32;
const uint SPAN = THREADS / 4; // groups that are rounded at a time, by four invocations each
const uint PIECE = FORM == OPERAND ? SPAN * 32 : THREADS * 4;
const uint PIECES = (WIDTH + PIECE - 1) / PIECE;
// Columns of a piece: 33 words a group, so that invocations read from banks of their own.
shared float staged[FORM == OPERAND ? SPAN * 33 : 1];
shared uint largests[FORM == OPERAND ? THREADS : 1];
shared int sums_of_digits[FORM == OPERAND ? THREADS : 1];

float value(uint row, uint column);

uint digit_column(uint place) {
    if (NIBBLES == 0) return place;
    return place < 16 ? 2 * place : 2 * place - 31;
}

// Rounds the groups of a piece.
void write_groups(uint row, uint rows, uint piece, Words to) {
    uint me = gl_LocalInvocationIndex, part = me % 4;
    for (uint i = me; i < SPAN * 32; i += THREADS) {
        uint column = piece * PIECE + i;
        staged[i / 32 * 33 + i % 32] = column < WIDTH ? value(row, column) : 0.0;
    }
    barrier();
    precise float x[8];
    uint largest_bits = 0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        x[i] = staged[me / 4 * 33 + digit_column(part * 8 + i)];
        largest_bits = max(largest_bits, floatBitsToUint(x[i]) & 0x7fffffffu);
    }
    largests[me] = largest_bits;
    barrier();
    for (uint i = 0; i < 4; i++) largest_bits = max(largest_bits, largests[me - part + i]);
    const float steps = DIGITS == 1 ? 127.0 : 32512.0;
    precise float largest = uintBitsToFloat(largest_bits);
    precise float inverse = quotient(steps, largest);
    // Too small to be divided by: everything is zero.
    if ((floatBitsToUint(inverse) & 0x7f800000u) == 0x7f800000u) inverse = 0.0;
    int sum = 0;
    uint high_words[2] = {0, 0}, low_words[2] = {0, 0};
    [[unroll]] for (uint i = 0; i < 8; i++) {
        precise float scaled = x[i] * inverse;
        int q = nearest_int(scaled);
        sum += q;
        uint word = i / 4, shift = i % 4 * 8;
        if (DIGITS == 1) {
            high_words[word] |= (uint(q) & 255u) << shift;
        } else {
            precise float above = float(q) * 0.003921569;
            int high = nearest_int(above);
            high_words[word] |= (uint(high) & 255u) << shift;
            low_words[word] |= (uint(q - high * 255) & 255u) << shift;
        }
    }
    sums_of_digits[me] = sum;
    barrier();
    uint g = piece * SPAN + me / 4;
    if (g < OPERAND_GROUPS) {
        uint at = row * OPERAND_GROUPS + g;
        [[unroll]] for (uint word = 0; word < 2; word++) {
            to.w[at * 8 * DIGITS + part * 2 + word] = high_words[word];
            if (DIGITS == 2) to.w[at * 16 + 8 + part * 2 + word] = low_words[word];
        }
        if (part == 0) {
            for (uint i = 1; i < 4; i++) sum += sums_of_digits[me + i];
            uint scales = rows * OPERAND_GROUPS * 8 * DIGITS;
            bool finite = largest_bits < 0x7f800000u;
            precise float scale = finite ? quotient(largest, steps) : uintBitsToFloat(0x7fc00000u);
            put(to, scales + at, scale);
            precise float of_group = float(sum) * scale;
            put(to, scales + rows * OPERAND_GROUPS + at, of_group);
        }
    }
    barrier();
}

uint half_bits(float x) { return FORM == CACHE_F16 ? f16(x) : bf16(x); }

// Writes every `step`th piece of a row from `first` on. Rows of the cache go where the state has them, other rows one
// behind the other.
void write_pieces(uint row, uint rows, Words to, uint stride, Words state, uint first, uint step) {
    uint target = row;
    if (HALVES || FORM == CACHE_F32) {
        target = cache_row_of(state, row);
        to = Words(half_of(state, row, to));
    }
    for (uint piece = first; piece < PIECES; piece += step) {
        uint end = min(piece * PIECE + PIECE, WIDTH), start = piece * PIECE + gl_LocalInvocationIndex;
        if (FORM == OPERAND) {
            write_groups(row, rows, piece, to);
        } else if (HALVES) {
            start += gl_LocalInvocationIndex;
            for (uint i = start; i < end; i += 2 * THREADS) {
                uint low = half_bits(value(row, i)), high = half_bits(value(row, i + 1));
                to.w[target * (stride / 2) + i / 2] = low | high << 16;
            }
        } else {
            for (uint i = start; i < end; i += THREADS) put(to, target * stride + i, value(row, i));
        }
    }
}

// Writes the whole row by this workgroup.
void write_row(uint row, uint rows, Words to, uint stride, Words state) {
    write_pieces(row, rows, to, stride, state, 0, 1);
}

// Writes a row by all workgroups of its line of the grid.
void write_shared_row(uint rows, Words to, uint stride, Words state) {
    write_pieces(gl_WorkGroupID.x, rows, to, stride, state, gl_WorkGroupID.y, gl_NumWorkGroups.y);
}
