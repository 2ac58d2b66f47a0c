#version 460
// Causal attention over rows of the KV cache: one workgroup for a head of a token, one invocation for a token of a block
// of 64. Blocks are at absolute positions and come in ascending order, so a row's bits depend on nothing beside it.
// a: queries, b: keys, c: values, d: state, e: out. n: heads, KV heads, stride of queries, of out, of the cache, window
// (0: none), 1: a soft cap. s: factor on queries, soft cap in powers of two.
#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/arithmetic.glsl"
#include "include/functions.glsl"
layout(local_size_x = 64) in;

shared float query[HEAD];
shared float scores[64];
shared uint places[64]; // rows of the block's tokens in the cache
shared float totals[16];

// The row of a position: on a token's way through a tree, where the state has it.
uint cache_row(uint row, uint position) {
    uint first = first_cache_row_of(args.d, row), start = way_start_of(args.d, row);
    if (position < start) return first + position;
    return first + args.d.w[way_of(args.d, row) + position - start];
}

void main() {
    uint me = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint kv_head = head / (args.n[0] / args.n[1]), position = position_of(args.d, row), stride = args.n[4];
    uint start = args.n[5] == 0 || position < args.n[5] ? 0 : position + 1 - args.n[5];
    for (uint i = me; i < HEAD; i += 64) {
        precise float q = f32(args.a, row * args.n[2] + head * HEAD + i) * args.s[0];
        query[i] = q;
    }
    if (me < 16) totals[me] = 0.0;
    const uint PARTS = (HEAD + 63) / 64;
    precise float sums[PARTS];
    for (uint p = 0; p < PARTS; p++) sums[p] = 0.0;
    float largest = -3.0e38;
    for (uint block = start / 64 * 64; block <= position; block += 64) {
        uint from = max(start, block) - block, end = min(position + 1, block + 64) - block;
        bool seen = me >= from && me < end;
        barrier();
        places[me] = seen ? cache_row(row, block + me) * stride + kv_head * HEAD : 0;
        precise float score = 0.0;
        if (seen) {
            uint at = places[me];
            for (uint i = 0; i < HEAD; i++) score = fused(query[i], element(args.b, at + i), score);
            if (args.n[6] != 0) score = tangent(score) * args.s[1];
        }
        scores[me] = score;
        barrier();
        float before = largest;
        for (uint t = from; t < end; t++) largest = max(largest, scores[t]);
        barrier();
        precise float less = before - largest;
        precise float factor = exponential2(less);
        less = score - largest;
        scores[me] = seen ? exponential2(less) : 0.0;
        barrier();
        if (me < 16) {
            precise float sum = 0.0;
            for (uint t = me; t < 64; t += 16) sum = sum + scores[t];
            totals[me] = fused(totals[me], factor, sum);
        }
        for (uint p = 0; p < PARTS; p++) {
            uint i = p * 64 + me;
            if (i < HEAD) {
                precise float sum = sums[p] * factor;
                for (uint t = from; t < end; t++) sum = fused(scores[t], element(args.c, places[t] + i), sum);
                sums[p] = sum;
            }
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
    for (uint p = 0; p < PARTS; p++) {
        uint i = p * 64 + me;
        if (i < HEAD) put(args.e, row * args.n[3] + head * HEAD + i, quotient(sums[p], totals[0]));
    }
}
