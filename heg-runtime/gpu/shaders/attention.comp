#version 460
// Causal attention over rows of the KV cache: one workgroup for a head of a token, one invocation for a token of a stretch
// of four blocks of 64. Blocks are at absolute positions and come in ascending order, so a row's bits depend on nothing
// beside it. Scores of a stretch are computed side by side; values are added token by token, one invocation for each
// dimension, while those of the next tokens are under way to shared memory.
// a: queries, b: keys, c: values, d: state, e: out. n: heads, KV heads, stride of queries, of out, of the cache, window
// (0: none), 1: a soft cap. s: factor on queries, soft cap in powers of two.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/functions.glsl"
layout(local_size_x = 256) in;

const uint BLOCK = 64, STRETCH = 256, BLOCKS = STRETCH / BLOCK;
const float LEAST = -3.0e38;
// Elements of a quad, quads of a head, tokens whose values are in shared memory at a time: 8 KiB of them, or a block.
const uint IN_QUAD = ELEMENT == BF16 ? 8 : 4;
const uint HEAD_QUADS = QUADS == 1 ? HEAD / IN_QUAD : 1;
const uint FITTING = 512 / HEAD_QUADS;
const uint STAGE = FITTING >= 64 ? 64 : FITTING >= 32 ? 32 : FITTING >= 16 ? 16 : FITTING >= 8 ? 8 : FITTING >= 4 ? 4 : 2;
const uint STAGE_QUADS = QUADS == 1 ? STAGE * HEAD_QUADS : 1;

shared float query[HEAD];
shared float scores[STRETCH];
shared uint places[STRETCH]; // rows of the stretch's tokens in the cache
shared float largests[64];
shared float block_largests[BLOCKS];
shared float factors[BLOCKS];
shared float totals[16];
shared uvec4 staged[STAGE_QUADS];

uvec4 coming[2];

// The row of a position: on a token's way through a tree, where the state has it.
uint cache_row(uint row, uint position) {
    uint first = first_cache_row_of(args.d, row), start = way_start_of(args.d, row);
    if (position < start) return first + position;
    return first + args.d.w[way_of(args.d, row) + position - start];
}

// An element of a quad.
float of_quad(uvec4 quad, uint i) {
    if (ELEMENT == BF16) return uintBitsToFloat((i & 1) == 0 ? quad[i / 2] << 16 : quad[i / 2] & 0xffff0000u);
    return uintBitsToFloat(quad[i]);
}

// A query times a key.
float score_of(uint at) {
    precise float score = 0.0;
    if (QUADS == 1) {
        for (uint q = 0; q < HEAD_QUADS; q++) {
            uvec4 quad = Quads(args.b).v[at / IN_QUAD + q];
            [[unroll]] for (uint i = 0; i < IN_QUAD; i++) score = fused(query[q * IN_QUAD + i], of_quad(quad, i), score);
        }
    } else {
        for (uint i = 0; i < HEAD; i++) score = fused(query[i], element(args.b, at + i), score);
    }
    return score;
}

// Reads this invocation's share of the values of the tokens from `first` of the stretch on.
void load_values(uint first) {
    if (QUADS == 0) return;
    [[unroll]] for (uint k = 0; k < 2; k++) {
        uint i = gl_LocalInvocationIndex + k * 256;
        if (i < STAGE_QUADS && first < STRETCH) {
            coming[k] = Quads(args.c).v[places[first + i / HEAD_QUADS] / IN_QUAD + i % HEAD_QUADS];
        }
    }
}

void store_values() {
    if (QUADS == 0) return;
    [[unroll]] for (uint k = 0; k < 2; k++) {
        uint i = gl_LocalInvocationIndex + k * 256;
        if (i < STAGE_QUADS) staged[i] = coming[k];
    }
}

// An element of the values of a token of the stretch, `staged` tokens behind the first in shared memory.
float value_of(uint token, uint behind, uint i) {
    if (QUADS == 0) return element(args.c, places[token] + i);
    return of_quad(staged[behind * HEAD_QUADS + i / IN_QUAD], i % IN_QUAD);
}

// The largest score of each block, with 64 invocations, then four.
void find_largest() {
    uint me = gl_LocalInvocationIndex;
    if (me < 64) {
        uint at = me / 16 * BLOCK + me % 16;
        largests[me] = max(max(scores[at], scores[at + 16]), max(scores[at + 32], scores[at + 48]));
    }
    barrier();
    if (me < BLOCKS) {
        float largest = largests[me * 16];
        for (uint k = 1; k < 16; k++) largest = max(largest, largests[me * 16 + k]);
        block_largests[me] = largest;
    }
    barrier();
}

void main() {
    uint me = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint kv_head = head / (args.n[0] / args.n[1]), position = position_of(args.d, row), stride = args.n[4];
    uint start = args.n[5] == 0 || position < args.n[5] ? 0 : position + 1 - args.n[5];
    for (uint i = me; i < HEAD; i += 256) {
        precise float q = f32(args.a, row * args.n[2] + head * HEAD + i) * args.s[0];
        query[i] = q;
    }
    if (me < 16) totals[me] = 0.0;
    const uint PARTS = (HEAD + 255) / 256;
    precise float sums[PARTS];
    [[unroll]] for (uint p = 0; p < PARTS; p++) sums[p] = 0.0;
    float largest = LEAST;
    for (uint stretch = start / BLOCK * BLOCK; stretch <= position; stretch += STRETCH) {
        // Tokens of the stretch that are seen.
        uint from = max(start, stretch) - stretch, end = min(position + 1 - stretch, STRETCH);
        bool seen = me >= from && me < end;
        barrier();
        places[me] = seen ? cache_row(row, stretch + me) * stride + kv_head * HEAD : 0;
        barrier();
        load_values(0);
        precise float score = LEAST;
        if (seen) {
            score = score_of(places[me]);
            if (args.n[6] != 0) score = tangent(score) * args.s[1];
        }
        scores[me] = score;
        barrier();
        find_largest();
        // The largest before this invocation's block, and behind it.
        float before = largest;
        for (uint k = 0; k < me / BLOCK; k++) before = max(before, block_largests[k]);
        float behind = max(before, block_largests[me / BLOCK]);
        for (uint k = 0; k < BLOCKS; k++) largest = max(largest, block_largests[k]);
        precise float less = before - behind;
        if (me % BLOCK == 0) factors[me / BLOCK] = exponential2(less);
        less = score - behind;
        scores[me] = seen ? exponential2(less) : 0.0;
        barrier();
        if (me >= 240) {
            uint lane = me - 240;
            for (uint first = 0; first < end; first += BLOCK) {
                precise float sum = 0.0;
                for (uint t = lane; t < BLOCK; t += 16) sum = sum + scores[first + t];
                totals[lane] = fused(totals[lane], factors[first / BLOCK], sum);
            }
        }
        for (uint first = 0; first < end; first += STAGE) {
            store_values();
            barrier();
            load_values(first + STAGE);
            uint least = max(from, first), most = min(end, first + STAGE);
            [[unroll]] for (uint p = 0; p < PARTS; p++) {
                uint i = p * 256 + me;
                if (i < HEAD) {
                    precise float sum = sums[p];
                    if (first % BLOCK == 0) sum = sum * factors[first / BLOCK];
                    if (least == first && most == first + STAGE) {
                        for (uint t = 0; t < STAGE; t++) sum = fused(scores[first + t], value_of(first + t, t, i), sum);
                    } else {
                        for (uint t = least; t < most; t++) sum = fused(scores[t], value_of(t, t - first, i), sum);
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
        if (me < half_) both = totals[me] + totals[me + half_];
        barrier();
        if (me < half_) totals[me] = both;
    }
    barrier();
    [[unroll]] for (uint p = 0; p < PARTS; p++) {
        uint i = p * 256 + me;
        if (i < HEAD) put(args.e, row * args.n[3] + head * HEAD + i, quotient(sums[p], totals[0]));
    }
}
