"""A Hugging Face folder as GGUF with 8-bit weights (Q8_0), for llama.cpp.

usage: gguf_model.py MODEL OUT

For Llama's family, and to measure with: weights are the folder's own, in llama.cpp's order; scaled rotary
tables are left out, which changes no shape; tokens without a text get one, since llama-server wants a
vocabulary. Needs gguf and numpy.
"""
import json, sys  # noqa: E401
from pathlib import Path

import gguf
import numpy as np

Q8_0 = gguf.GGMLQuantizationType.Q8_0
folder, out = Path(sys.argv[1]), sys.argv[2]
config = json.loads((folder / "config.json").read_text())
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
hidden, layers, vocab_size = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]

writer = gguf.GGUFWriter(out, "llama")
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(hidden)
writer.add_block_count(layers)
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_rope_dimension_count(config.get("head_dim") or hidden // heads)
writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_vocab_size(vocab_size)
writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def add_vocabulary():
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    texts = {id: text for text, id in tokenizer["model"]["vocab"].items()}
    texts.update(special)
    kinds = [
        gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL
        for id in range(vocab_size)
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    # A vocabulary without merges is refused; one of a token that is there already never applies.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([texts.get(id, f"token{id}") for id in range(vocab_size)])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges or ["a a"])
    for add, key in ((writer.add_bos_token_id, "bos_token_id"), (writer.add_eos_token_id, "eos_token_id")):
        ids = config.get(key)
        add(ids[0] if isinstance(ids, list) else ids)


def tensors():
    """Names and values in f32, one at a time: header, then mapped bytes (safetensors' format)."""
    for path in sorted(folder.glob("*.safetensors")):
        raw = np.memmap(path, np.uint8, "r")
        length = int(raw[:8].view("<u8")[0])
        header = json.loads(raw[8 : 8 + length].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            yield name, to_f32(raw[begin:end], entry["dtype"]).reshape(entry["shape"])


def to_f32(data, dtype):
    if dtype == "BF16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4")
    return data.view({"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)


def llama_rows(weight, heads):
    """Rows of q and k in the order of llama.cpp's rotary embedding: neighbours instead of halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
add_vocabulary()
for name, weight in tensors():
    if name.endswith("q_proj.weight"):
        weight = llama_rows(weight, heads)
    if name.endswith("k_proj.weight"):
        weight = llama_rows(weight, kv_heads)
    name = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if weight.ndim == 1:
        writer.add_tensor(name, np.ascontiguousarray(weight))
    else:
        writer.add_tensor(name, gguf.quants.quantize(weight, Q8_0), raw_dtype=Q8_0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
