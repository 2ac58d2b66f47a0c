"""OpenVINO GenAI's side of `cargo xtask quality`: logits of every scored position, as raw little-endian f32.

usage: genai_logits.py prefill|decode MODEL PASSAGES OUTPUT

PASSAGES has one JSON object a line: `tokens`, and `from`, the position of the first token that is predicted.

GenAI's own interface gives log probabilities of chosen tokens only, no distributions. So the model that it would load
is compiled for the CPU plugin as GenAI's LLMPipeline does, without any property: keys and values in u8, activations
quantised in groups of 32, and whatever precision the plugin chooses for this machine. `settings` prints what it chose.
"""
import json, sys  # noqa: E401
import numpy as np
import openvino as ov

mode, model, passages, output = sys.argv[1:5]
compiled = ov.Core().compile_model(model + "/openvino_model.xml", "CPU", {})
request = compiled.create_infer_request()
inputs = {name for port in compiled.inputs for name in port.get_names()}


def step(tokens, before):
    """Logits of all `tokens`, which follow `before` tokens that the model has read."""
    given = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, before + len(tokens)), np.int64),
        "position_ids": np.arange(before, before + len(tokens), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    request.infer({name: value for name, value in given.items() if name in inputs})
    return request.get_tensor("logits").data[0]


with open(output, "wb") as out:
    for line in open(passages):
        passage = json.loads(line)
        tokens, first = passage["tokens"][:-1], passage["from"]
        request.reset_state()
        prompt = len(tokens) if mode == "prefill" else first
        out.write(step(tokens[:prompt], 0)[first - 1 :].astype("<f4").tobytes())
        for position in range(prompt, len(tokens)):
            out.write(step(tokens[position : position + 1], position).astype("<f4").tobytes())

wanted = ["INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]
print(json.dumps({name: str(compiled.get_property(name)) for name in wanted}))
