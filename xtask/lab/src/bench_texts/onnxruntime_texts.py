"""ONNX Runtime's side of `cargo xtask bench-texts`.

usage: onnxruntime_texts.py make PUBLISHED MODEL
       onnxruntime_texts.py first MODEL TEXT
       onnxruntime_texts.py rates MODEL TEXTS SECONDS
       onnxruntime_texts.py vectors MODEL TEXTS

`make` writes a published folder with a BERT encoder in the form that ONNX Runtime runs fastest: its own fused operators, which
its optimiser makes of exported models, with weights rounded to 8 bits, and activations when they are there. TEXTS is a JSON file
with a list of texts for each rate, which are asked for in one call, again and again.
"""
import json, os, shutil, sys, tempfile, time  # noqa: E401

import numpy as np


def tensors(file):
    data = open(file, "rb").read()
    size = int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "I64": np.int64}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            yield name, np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])


def make(folder, model):
    from onnx import TensorProto, helper, numpy_helper, save
    from onnxruntime.quantization import QuantType, quantize_dynamic

    config = json.load(open(os.path.join(folder, "config.json")))
    found = dict(tensors(os.path.join(folder, "model.safetensors")))
    epsilon, constants, nodes = config["layer_norm_eps"], [], []

    def put(name, *parts):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(np.concatenate(parts, -1)), name))
        return name

    def weight(name):
        return put(name, found[name + ".weight"].T)

    def plain(name):
        return put(name, found[name])

    def run(operator, inputs, name, own=True, **how):
        nodes.append(helper.make_node(operator, inputs, [name], name, domain="com.microsoft" if own else "", **how))
        return name

    def norm(row, skip, name, bias):
        ends = [plain(f"{name}.LayerNorm.{end}") for end in ("weight", "bias")]
        return run("SkipLayerNormalization", [row, skip, *ends, bias], name + ".norm", epsilon=epsilon)

    tables = [plain(f"embeddings.{name}_embeddings.weight") for name in ("word", "position", "token_type")]
    ends = [plain(f"embeddings.LayerNorm.{end}") for end in ("weight", "bias")]
    row, inputs = "embedded", ["ids", "types", *tables, *ends, "mask"]
    nodes.append(helper.make_node("EmbedLayerNormalization", inputs, [row, "ends"], row, domain="com.microsoft", epsilon=epsilon))
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        three = [f"{at}attention.self.{name}." for name in ("query", "key", "value")]
        joined = put(at + "qkv", *(found[name + "weight"].T for name in three))
        bias = put(at + "qkv.bias", *(found[name + "bias"] for name in three))
        mixed = run("Attention", [row, joined, bias, "mask"], at + "attention", num_heads=config["num_attention_heads"])
        name = at + "attention.output"
        mixed = run("MatMul", [mixed, weight(name + ".dense")], name + ".product", False)
        row = norm(mixed, row, name, plain(name + ".dense.bias"))
        name = at + "intermediate.dense"
        wide = run("MatMul", [row, weight(name)], name + ".product", False)
        wide = run("BiasGelu", [wide, plain(name + ".bias")], name + ".gelu")
        name = at + "output"
        narrow = run("MatMul", [wide, weight(name + ".dense")], name + ".product", False)
        row = norm(narrow, row, name, plain(name + ".dense.bias"))
    shape = ["texts", "tokens"]
    given = [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name in ("ids", "types", "mask")]
    given_back = helper.make_tensor_value_info(row, TensorProto.FLOAT, [*shape, config["hidden_size"]])
    graph = helper.make_graph(nodes, "encoder", given, [given_back], constants)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    with tempfile.TemporaryDirectory() as scratch:
        floats = os.path.join(scratch, "floats.onnx")
        save(helper.make_model(graph, opset_imports=domains, ir_version=8), floats)
        kinds = ["MatMul", "Attention"]
        quantize_dynamic(
            floats, os.path.join(model, "model.onnx"), kinds, per_channel=True, weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
    shutil.copy(os.path.join(folder, "tokenizer.json"), model)


def encoder(model):
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    file = os.path.join(model, "model.onnx")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(512)

    def vectors(texts):
        encoded = tokenizer.encode_batch(texts)
        names = {"ids": "ids", "types": "type_ids", "mask": "attention_mask"}
        given = {name: np.array([getattr(one, own) for one in encoded], np.int32) for name, own in names.items()}
        rows = session.run(None, given)[0]
        kept = given["mask"][..., None].astype(np.float32)
        means = (rows * kept).sum(1) / kept.sum(1)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    return vectors


def rate(vectors, texts, span):
    vectors(texts)
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < span:
        vectors(texts)
        done += len(texts)
    return done / (time.perf_counter() - begin)


role, model = sys.argv[1:3]
if role == "make":
    make(model, sys.argv[3])
elif role == "first":
    print(encoder(model)([sys.argv[3]])[0][:2], flush=True)
elif role == "rates":
    vectors, span = encoder(model), float(sys.argv[4])
    print(json.dumps([rate(vectors, texts, span) for texts in json.load(open(sys.argv[3]))]))
else:
    vectors = encoder(model)
    print(json.dumps([vectors([text])[0].tolist() for text in json.load(open(sys.argv[3]))]))
