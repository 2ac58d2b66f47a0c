// Exponentials and what is built on them: the polynomials of the CPU programs, operation by operation.

// e^x and the parts that tanh needs: x = n · ln 2 + r.
void reduced(float x, out precise float n, out precise float r) {
    precise float scaled = x * 1.44269504;
    n = nearest(scaled);
    r = fused(n, -0.693147182, x);
    r = fused(n, 1.9046542e-9, r);
}

// (e^r − 1) / r.
float power_series(float r) {
    precise float p = 0.0013888873;
    p = fused(p, r, 0.008369076);
    p = fused(p, r, 0.041667137);
    p = fused(p, r, 0.16666506);
    p = fused(p, r, 0.49999997);
    p = fused(p, r, 1.0);
    return p;
}

float exponential(float x) {
    precise float n, r;
    reduced(min(max(x, -87.3), 88.3), n, r);
    precise float result = fused(power_series(r), r, 1.0) * power_of_two(n);
    return result;
}

float exponential2(float x) {
    precise float y = max(x, -126.0);
    precise float n = nearest(y);
    precise float r = y - n;
    precise float p = 0.00015403512;
    p = fused(p, r, 0.0013390735);
    p = fused(p, r, 0.009618238);
    p = fused(p, r, 0.055503573);
    p = fused(p, r, 0.2402265);
    p = fused(p, r, 0.693147182);
    p = fused(p, r, 1.0);
    precise float result = p * power_of_two(n);
    result = result - uintBitsToFloat(0x00800000u);
    return result;
}

float tangent(float x) {
    precise float y = min(max(x, -10.0), 10.0);
    y = y + y;
    precise float n, r;
    reduced(y, n, r);
    float scale = power_of_two(n);
    precise float below = scale - 1.0;
    precise float p = power_series(r) * r;
    p = fused(p, scale, below);
    precise float above = p + 2.0;
    return quotient(p, above);
}

float silu(float x) {
    precise float minus = 0.0 - x;
    precise float below = exponential(minus) + 1.0;
    return quotient(x, below);
}

float gelu(float x) {
    float size = abs(x);
    precise float below = fused(size, uintBitsToFloat(0x3e6d3387u), 1.0); // 0.3275911 / √2
    precise float t = quotient(1.0, below);
    precise float square = x * x;
    square = square * -0.5;
    precise float p = 1.0614054;
    p = fused(p, t, -1.453152);
    p = fused(p, t, 1.4214138);
    p = fused(p, t, -0.28449672);
    p = fused(p, t, 0.2548296);
    p = p * t;
    p = p * exponential(square);
    precise float half_size = size * 0.5;
    p = half_size * p;
    precise float y = max(x, 0.0) - p;
    return y;
}

float gelu_tanh(float x) {
    precise float square = x * x;
    precise float cubic = fused(square, 0.044715, 1.0);
    precise float u = x * uintBitsToFloat(0xbfcc422au); // −2 √(2/π)
    u = u * cubic;
    precise float below = exponential(u) + 1.0;
    return quotient(x, below);
}
