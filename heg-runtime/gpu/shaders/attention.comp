#version 460
// Causal attention over rows of the KV cache: one workgroup for a head of ROWS tokens, one invocation for a token of a
// stretch of blocks of 64: one block or four. Blocks are at absolute positions and come in ascending order, so a row's bits
// depend on nothing beside it. Scores of a stretch are computed side by side; values are added token by token, one
// invocation for each dimension of each row, while those of the next tokens are under way to shared memory. Rows that do
// not see the same cache in order, as those of trees, come one after the other.
// a: queries, b: number of the half with keys, c: with values, d: state, e: out. n: heads, KV heads, stride of queries, of out, of the cache, window
// (0: none), 1: a soft cap, rows. s: factor on queries, soft cap in powers of two.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/functions.glsl"
layout(local_size_x = 256, local_size_x_id = 16) in;

const uint BLOCK = 64, STRETCH = gl_WorkGroupSize.x, BLOCKS = STRETCH / BLOCK;
const float LEAST = -3.0e38;
const uint NO_WAY = 0xffffffffu;
// Elements of a quad, quads of a head, tokens whose values are in shared memory at a time: 8 KiB of them, or a block.
const uint IN_QUAD = ELEMENT == F32 ? 4 : 8;
const uint HEAD_QUADS = QUADS == 1 ? HEAD / IN_QUAD : 1;
const uint FITTING = 512 / HEAD_QUADS;
const uint STAGE = FITTING >= 64 ? 64 : FITTING >= 32 ? 32 : FITTING >= 16 ? 16 : FITTING >= 8 ? 8 : FITTING >= 4 ? 4 : 2;
const uint STAGE_QUADS = QUADS == 1 ? STAGE * HEAD_QUADS : 1;
const uint LOADS = 512 / STRETCH;
const uint PARTS = (ROWS * HEAD + STRETCH - 1) / STRETCH;

shared vec4 query[(ROWS * HEAD + 3) / 4];
shared vec4 scores[ROWS * STRETCH / 4];
shared uint places[STRETCH]; // rows of the stretch's tokens in the cache
shared float largests[ROWS * BLOCKS * 16];
shared float block_largests[ROWS * BLOCKS];
shared float factors[ROWS * BLOCKS];
shared float totals[ROWS * 16];
shared uvec4 staged[STAGE_QUADS];

uvec4 coming[LOADS];
// Where keys and values of the sequence at hand begin.
uvec2 keys, values;

// The row of a position: on a token's way through a tree, where the state has it.
uint cache_row(uint row, uint position) {
    uint start = way_start_of(args.d, row);
    if (position < start) return position;
    return args.d.w[way_of(args.d, row) + position - start];
}

// The first position that a row sees.
uint start_of(uint row) {
    uint position = position_of(args.d, row);
    return args.n[5] == 0 || position < args.n[5] ? 0 : position + 1 - args.n[5];
}

// An element of a quad.
float of_quad(uvec4 quad, uint i) {
    if (ELEMENT == BF16) return uintBitsToFloat((i & 1) == 0 ? quad[i / 2] << 16 : quad[i / 2] & 0xffff0000u);
    if (ELEMENT == F16) return from_f16((quad[i / 2] >> (i % 2 * 16)) & 0xffffu);
    return uintBitsToFloat(quad[i]);
}

// Reads this invocation's share of the values of the tokens from `first` of the stretch on.
void load_values(uint first) {
    if (QUADS == 0) return;
    [[unroll]] for (uint k = 0; k < LOADS; k++) {
        uint i = gl_LocalInvocationIndex + k * STRETCH;
        if (i < STAGE_QUADS && first < STRETCH) {
            coming[k] = Quads(values).v[places[first + i / HEAD_QUADS] / IN_QUAD + i % HEAD_QUADS];
        }
    }
}

void store_values() {
    if (QUADS == 0) return;
    [[unroll]] for (uint k = 0; k < LOADS; k++) {
        uint i = gl_LocalInvocationIndex + k * STRETCH;
        if (i < STAGE_QUADS) staged[i] = coming[k];
    }
}

// An element of the values of a token of the stretch, `behind` tokens after the first in shared memory.
float value_of(uint token, uint behind, uint i) {
    if (QUADS == 0) return element(Words(values), places[token] + i);
    return of_quad(staged[behind * HEAD_QUADS + i / IN_QUAD], i % IN_QUAD);
}

float score_in(uint at) { return scores[at / 4][at % 4]; }

// The largest score of each block of each row: by sixteen invocations, then by one.
void find_largest() {
    uint me = gl_LocalInvocationIndex;
    for (uint k = me; k < ROWS * BLOCKS * 16; k += STRETCH) {
        vec4 four = scores[k];
        largests[k] = max(max(four.x, four.y), max(four.z, four.w));
    }
    barrier();
    for (uint k = me; k < ROWS * BLOCKS; k += STRETCH) {
        float largest = LEAST;
        [[unroll]] for (uint i = 0; i < 16; i++) largest = max(largest, largests[k * 16 + i]);
        block_largests[k] = largest;
    }
    barrier();
}

// The queries of rows, with their factor.
void load_queries(uint first_row, uint count, uint head) {
    for (uint i = gl_LocalInvocationIndex; i < count * HEAD; i += STRETCH) {
        precise float q = f32(args.a, (first_row + i / HEAD) * args.n[2] + head * HEAD + i % HEAD) * args.s[0];
        query[i / 4][i % 4] = q;
    }
    if (gl_LocalInvocationIndex < ROWS * 16) totals[gl_LocalInvocationIndex] = 0.0;
}

// Queries of rows times the key at a place.
void score_rows(uint at, out precise float score[ROWS]) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) score[r] = 0.0;
    if (QUADS == 1) {
        [[unroll]] for (uint q = 0; q < HEAD_QUADS; q++) {
            uvec4 quad = Quads(keys).v[at / IN_QUAD + q];
            [[unroll]] for (uint i = 0; i < IN_QUAD; i += 4) {
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    vec4 four = query[(r * HEAD + q * IN_QUAD + i) / 4];
                    [[unroll]] for (uint k = 0; k < 4; k++) score[r] = fused(four[k], of_quad(quad, i + k), score[r]);
                }
            }
        }
    } else {
        for (uint i = 0; i < HEAD; i++) {
            float key = element(Words(keys), at + i);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                uint of_query = r * HEAD + i;
                score[r] = fused(query[of_query / 4][of_query % 4], key, score[r]);
            }
        }
    }
}

// Adds the weights of a stretch's blocks, in sixteen lanes for each row.
void add_weights(uint end) {
    uint me = gl_LocalInvocationIndex;
    if (me < STRETCH - ROWS * 16) return;
    uint k = me + ROWS * 16 - STRETCH, r = k / 16, lane = k % 16;
    for (uint first = 0; first < end; first += BLOCK) {
        precise float sum = 0.0;
        [[unroll]] for (uint t = 0; t < BLOCK; t += 16) sum = sum + score_in(r * STRETCH + first + t + lane);
        totals[k] = fused(totals[k], factors[r * BLOCKS + first / BLOCK], sum);
    }
}

// Attention of `count` rows that see the same cache in order, or of one.
void attend(uint first_row, uint count, uint head) {
    uint me = gl_LocalInvocationIndex, kv_head = head / (args.n[0] / args.n[1]), stride = args.n[4];
    uint last = first_row + count - 1, last_position = position_of(args.d, last), least_start = 0xffffffffu;
    [[unroll]] for (uint r = 0; r < ROWS; r++) least_start = min(least_start, start_of(min(first_row + r, last)));
    keys = half_of(args.d, last, args.b);
    values = half_of(args.d, last, args.c);
    load_queries(first_row, count, head);
    precise float sums[PARTS];
    [[unroll]] for (uint p = 0; p < PARTS; p++) sums[p] = 0.0;
    float largest[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) largest[r] = LEAST;
    for (uint stretch = least_start / BLOCK * BLOCK; stretch <= last_position; stretch += STRETCH) {
        uint position = stretch + me, end = min(last_position + 1 - stretch, STRETCH);
        barrier();
        places[me] = me < end ? cache_row(last, position) * stride + kv_head * HEAD : 0;
        barrier();
        load_values(0);
        precise float score[ROWS];
        bool seen[ROWS];
        if (me < end) score_rows(places[me], score);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint row = min(first_row + r, last);
            seen[r] = me < end && position >= start_of(row) && position <= position_of(args.d, row);
            if (args.n[6] != 0) score[r] = tangent(score[r]) * args.s[1];
            score[r] = seen[r] ? score[r] : LEAST;
            scores[(r * STRETCH + me) / 4][me % 4] = score[r];
        }
        barrier();
        find_largest();
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            // The largest before this invocation's block, and behind it.
            float before = largest[r], all = largest[r];
            [[unroll]] for (uint k = 0; k < BLOCKS; k++) {
                float of_block = block_largests[r * BLOCKS + k];
                if (k < me / BLOCK) before = max(before, of_block);
                all = max(all, of_block);
            }
            largest[r] = all;
            float behind = max(before, block_largests[r * BLOCKS + me / BLOCK]);
            precise float less = before - behind;
            if (me % BLOCK == 0) factors[r * BLOCKS + me / BLOCK] = exponential2(less);
            less = score[r] - behind;
            scores[(r * STRETCH + me) / 4][me % 4] = seen[r] ? exponential2(less) : 0.0;
        }
        barrier();
        add_weights(end);
        for (uint first = 0; first < end; first += STAGE) {
            store_values();
            barrier();
            load_values(first + STAGE);
            [[unroll]] for (uint p = 0; p < PARTS; p++) {
                uint item = p * STRETCH + me, r = item / HEAD, i = item % HEAD;
                if (r < count) {
                    precise float sum = sums[p];
                    if (first % BLOCK == 0) sum = sum * factors[r * BLOCKS + first / BLOCK];
                    uint row = first_row + r, from = max(start_of(row), stretch) - stretch;
                    uint least = max(from, first), most = first + STAGE;
                    uint seen = position_of(args.d, row) + 1;
                    most = min(most, seen > stretch ? seen - stretch : 0);
                    if (least == first && most == first + STAGE && STAGE >= 8) {
                        for (uint t = 0; t < STAGE; t += 8) {
                            vec4 four = scores[(r * STRETCH + first + t) / 4];
                            vec4 next = scores[(r * STRETCH + first + t) / 4 + 1];
                            float v[8];
                            [[unroll]] for (uint k = 0; k < 8; k++) v[k] = value_of(first + t + k, t + k, i);
                            [[unroll]] for (uint k = 0; k < 4; k++) sum = fused(four[k], v[k], sum);
                            [[unroll]] for (uint k = 0; k < 4; k++) sum = fused(next[k], v[4 + k], sum);
                        }
                    } else {
                        for (uint t = least; t < most; t++) {
                            sum = fused(score_in(r * STRETCH + t), value_of(t, t - first, i), sum);
                        }
                    }
                    sums[p] = sum;
                }
            }
            barrier();
        }
    }
    for (uint half_ = 8; half_ > 0; half_ /= 2) {
        barrier();
        precise float both;
        if (me < ROWS * 16 && me % 16 < half_) both = totals[me] + totals[me + half_];
        barrier();
        if (me < ROWS * 16 && me % 16 < half_) totals[me] = both;
    }
    barrier();
    [[unroll]] for (uint p = 0; p < PARTS; p++) {
        uint item = p * STRETCH + me, r = item / HEAD, i = item % HEAD;
        if (r < count) put(args.e, (first_row + r) * args.n[3] + head * HEAD + i, quotient(sums[p], totals[r * 16]));
    }
    barrier();
}

void main() {
    uint head = gl_WorkGroupID.x, first = gl_WorkGroupID.y * ROWS, count = min(args.n[7] - first, ROWS);
    // Rows of one sequence, one behind the other.
    bool same = true;
    for (uint r = 0; r < count; r++) {
        same = same && way_start_of(args.d, first + r) == NO_WAY
            && cache_of(args.d, first + r) == cache_of(args.d, first)
            && position_of(args.d, first + r) == position_of(args.d, first) + r;
    }
    uint step = same ? count : 1;
    for (uint r = 0; r < count; r += step) attend(first + r, step, head);
}
