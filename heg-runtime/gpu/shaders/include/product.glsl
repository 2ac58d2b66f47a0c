// What becomes of a product's sums. a: weights, b: scales, c: centres, d: rows that are multiplied, e: bias, f: residual,
// g: out. n: rows, outputs, stride of out, of the residual, 1 centres | 2 bias | 4 residual. s: factor of the residual.
const uint CENTRES = 1, BIAS = 2, RESIDUAL = 4;

float finished(float sum, uint row, uint output_) {
    precise float y = sum;
    if ((args.n[4] & BIAS) != 0) y = y + f32(args.e, output_);
    if ((args.n[4] & RESIDUAL) != 0) y = fused(y, args.s[0], f32(args.f, row * args.n[3] + output_));
    return y;
}
