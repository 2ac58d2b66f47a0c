//! Figures of the paper (HeteroLLM, section 5), which stand beside ours.

/// Tokens of a second of Llama-8B at 256 tokens, with tensors cut: with plain and with fast synchronisation (5.4).
pub(super) const TENSOR_256: [f64; 2] = [196.44, 236.92];

/// With tensors cut over layers placed, at 256 tokens of Llama-8B (5.6).
pub(super) const TENSOR_OVER_LAYER_256: f64 = 1.244;

/// With layers placed over other engines, at 256 tokens of Llama-8B (5.2.1). The last is the one that we model.
pub(super) const LAYER_GAINS_256: [(&str, f64); 3] =
    [("MNN", 5.85), ("llama.cpp", 24.9), ("MLC", 5.64)];
pub(super) const LAYER_OVER_SECOND_256: f64 = 2.99;

/// With tensors cut over layers placed: on average, and at 32 tokens (5.2.1).
pub(super) const TENSOR_OVER_LAYER: [f64; 2] = [1.302, 1.408];

/// With tensors cut at 1024 tokens of Llama-8B: tokens of a second, and gains over other engines (5.2.1).
pub(super) const TENSOR_1024: f64 = 247.9;
pub(super) const TENSOR_GAINS_1024: [(&str, f64); 3] =
    [("llama.cpp", 34.5), ("MLC", 9.99), ("MNN", 4.36)];

/// InternLM-1.8B at 256 tokens: tokens of a second, and those of mllm-npu (5.2.1).
pub(super) const INTERNLM_256: [f64; 2] = [1092.0, 564.0];

/// Llama-3B over the second device alone, the mean over lengths (5.2.1).
pub(super) const TENSOR_OVER_SECOND_3B: f64 = 3.51;

/// At 525 tokens of Llama-8B, over each other way (5.2.2).
pub(super) const ODD_525: [f64; 3] = [2.24, 2.21, 1.35];
/// Over padding just past a static size, on average; time saved over the pipe, least and most (5.2.2).
pub(super) const PAST_A_SIZE: f64 = 1.91;
pub(super) const BELOW_PIPE: [f64; 2] = [0.132, 0.301];
/// Tokens, and µs to make kernels for them (5.2.2).
pub(super) const PREPARATION_US: [(f64, f64); 2] = [(135.0, 408_400.0), (1000.0, 2_050_000.0)];

/// Decoding after 256 tokens (5.3): tokens of a second, and the gain over the second device alone, by model.
pub(super) const DECODE: [(&str, f64, f64); 3] = [
    ("llama-3-8b", 14.01, 1.234),
    ("llama-3.2-3b", 29.9, 1.0852),
    ("internlm2-1.8b", 51.12, 1.1338),
];
/// Gains over other engines in decoding (5.3).
pub(super) const DECODE_GAINS: [(&str, &str, f64); 5] = [
    ("llama-3-8b", "MNN", 1.50),
    ("llama-3-8b", "llama.cpp", 2.53),
    ("llama-3-8b", "MLC", 1.52),
    ("internlm2-1.8b", "MNN", 1.94),
    ("internlm2-1.8b", "MLC", 2.62),
];
/// What decoding draws, in GB/s: the second device alone, and both (5.3).
pub(super) const DRAWN: [f64; 2] = [43.3, 59.1];

/// Gains of fast synchronisation in a prompt, mean over lengths: layers placed, tensors cut (5.4).
pub(super) const FAST_PREFILL: [(&str, [f64; 2]); 3] = [
    ("llama-3-8b", [1.158, 1.243]),
    ("llama-2-7b", [1.317, 1.490]),
    ("internlm2-1.8b", [1.267, 1.345]),
];
/// And in decoding (5.4).
pub(super) const FAST_DECODE: [(&str, f64); 4] = [
    ("llama-3-8b", 4.01),
    ("llama-2-7b", 2.2),
    ("llama-3.2-3b", 2.2),
    ("internlm2-1.8b", 2.2),
];

/// Speed lost beside a game: layers placed, tensors cut (5.5); and tensors cut beside it over layers placed without.
pub(super) const GAME_LOSS: [f64; 2] = [0.0957, 0.0726];
pub(super) const GAME_OVER_LAYER: f64 = 1.153;

/// W with layers placed; tensors cut over layers placed: power, energy; energy over the second device alone (5.6).
pub(super) const LAYER_WATTS: f64 = 2.23;
pub(super) const TENSOR_POWER: f64 = 1.232;
pub(super) const TENSOR_ENERGY: f64 = 1.033;
pub(super) const ENERGY_GAIN: f64 = 5.87;

/// What the paper says twice and not alike, or what does not follow from what it says.
pub(super) const INCONSISTENT: [&str; 6] = [
    "Energy with tensors cut, +3.3% over layers placed (5.6): 23.2% more power for 1/1.244 of the time is 1.0% less.",
    "Speed over PPL-OpenCL at 256: 2.99 for layers placed (5.2.1) times 1.244 (5.6) is 3.72, but 5.6 says \"2.72x faster\". \
     Read as 3.72 times the speed, it gives 5.6's 5.87 times the efficiency at 63.3% of the power; as 2.72 times, 4.3.",
    "Padding at 525 takes 2.21 times as long (5.2.2), and at 1024 tokens it computes the same kernels: at 5.2.1's speeds \
     (190 token/s for layers placed, 237 for tensors cut) that is 2.43 times.",
    "Online-prepare at 525 takes 2.24 times as long (5.2.2): of 5.0 s at 237 token/s for tensors cut, preparation is about \
     1.15 s on the line between the two lengths that are given, and the rest 138 token/s, where layers placed reach 190.",
    "Fast synchronisation gains 4.01 times in decoding 8B and 2.2 times in smaller models (5.4). Copies take 400 us whatever \
     their size (3.1), and a smaller model's token is shorter, so that it should gain more.",
    "Fast synchronisation gains 24.3% in prompts of 8B and 49.0% of 7B (5.4), whose layers and products are as many and \
     almost as large.",
];
