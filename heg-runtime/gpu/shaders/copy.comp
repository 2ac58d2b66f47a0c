#version 460
// Small copies, all at once: a driver takes some microseconds for each of its own. A workgroup for each. a: copies, eight
// words each: addresses of the source and of the destination, words. n: copies.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "include/memory.glsl"
layout(local_size_x = 64) in;

void main() {
    for (uint copy = gl_WorkGroupID.x; copy < args.n[0]; copy += gl_NumWorkGroups.x) {
        uint at = copy * 8;
        Words from = Words(uvec2(args.a.w[at], args.a.w[at + 1])), to = Words(uvec2(args.a.w[at + 2], args.a.w[at + 3]));
        for (uint i = gl_LocalInvocationIndex; i < args.a.w[at + 4]; i += 64) to.w[i] = from.w[i];
    }
}
