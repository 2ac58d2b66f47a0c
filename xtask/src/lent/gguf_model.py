"""Writes a GGUF file with the shapes of a Hugging Face config.json and 8-bit weights of noise (Q8_0), for llama-bench.

gguf_model.py CONFIG FILE: no package is needed. It has no tokenizer, since llama-bench takes tokens by chance. One piece
of noise is repeated, for only the number of bytes counts.
"""

import json
import random
import struct
import sys

U32, F32, STRING = 4, 6, 8
TENSOR_F32, TENSOR_Q8_0 = 0, 8
BLOCK, BLOCK_BYTES = 32, 34
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key, kind, value):
    packed = text(value) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", value)
    return text(key) + struct.pack("<I", kind) + packed


def fields(config):
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    numbers = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": head,
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "vocab_size": config["vocab_size"],
    }
    yield field("general.architecture", STRING, "llama")
    yield field("general.file_type", U32, 7)
    yield field("tokenizer.ggml.model", STRING, "no_vocab")
    for key, value in numbers.items():
        yield field("llama." + key, U32, value)
    yield field("llama.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"])
    yield field("llama.rope.freq_base", F32, config.get("rope_theta", 10000.0))


def tensors(config):
    """Names, and columns and rows of matrices or the length of vectors."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or hidden // heads
    yield "token_embd.weight", (hidden, config["vocab_size"])
    yield "output_norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", False):
        yield "output.weight", (hidden, config["vocab_size"])
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "attn_norm": (hidden,),
            "attn_q": (hidden, heads * head),
            "attn_k": (hidden, kv * head),
            "attn_v": (hidden, kv * head),
            "attn_output": (heads * head, hidden),
            "ffn_norm": (hidden,),
            "ffn_gate": (hidden, ffn),
            "ffn_up": (hidden, ffn),
            "ffn_down": (ffn, hidden),
        }
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape


def size(shape):
    return 4 * shape[0] if len(shape) == 1 else shape[0] // BLOCK * BLOCK_BYTES * shape[1]


def padded(count):
    return -count % ALIGNMENT


def noise(blocks):
    chance = random.Random(1)
    scale = struct.pack("<e", 0.0005)
    return b"".join(scale + chance.randbytes(BLOCK) for _ in range(blocks))


def main(config_file, file):
    with open(config_file, encoding="utf-8") as opened:
        config = json.load(opened)
    known, all_tensors = list(fields(config)), list(tensors(config))
    head, at = struct.pack("<4sIQQ", b"GGUF", 3, len(all_tensors), len(known)) + b"".join(known), 0
    for name, shape in all_tensors:
        kind = TENSOR_F32 if len(shape) == 1 else TENSOR_Q8_0
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", kind, at)
        at += size(shape) + padded(size(shape))
    piece = noise(1 << 16)
    with open(file, "wb") as out:
        out.write(head + bytes(padded(len(head))))
        for _, shape in all_tensors:
            left = size(shape)
            repeated = struct.pack("<f", 1.0) * shape[0] if len(shape) == 1 else piece
            while left > 0:
                out.write(repeated[:left])
                left -= len(repeated[:left])
            out.write(bytes(padded(size(shape))))


main(*sys.argv[1:])
