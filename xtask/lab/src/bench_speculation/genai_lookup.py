"""OpenVINO GenAI's side of `cargo xtask bench-speculation`: answers prompts with and without prompt look-up.

usage: genai_lookup.py MODEL

Reads an object a line from standard input, {"lookup": bool, "ids": [...], "tokens": n}, and writes one for each:
{"seconds": s, "tokens": n}. Answers are greedy and have exactly that many tokens.
"""
import json
import sys
import time

import numpy as np
import openvino_genai as genai

# openvino_genai has imported openvino already.
Tensor = sys.modules["openvino"].Tensor

model = sys.argv[1]
plain = genai.LLMPipeline(model, "CPU")
lookup = genai.LLMPipeline(model, "CPU", prompt_lookup=True)


def config(tokens, with_lookup):
    chosen = genai.GenerationConfig()
    chosen.max_new_tokens = tokens
    chosen.ignore_eos = True
    chosen.do_sample = False
    if with_lookup:
        # What OpenVINO's own samples take.
        chosen.num_assistant_tokens = 5
        chosen.max_ngram_size = 3
    return chosen


def answer(request):
    with_lookup = request["lookup"]
    pipeline = lookup if with_lookup else plain
    ids = Tensor(np.array([request["ids"]], dtype=np.int64))
    begin = time.perf_counter()
    results = pipeline.generate(ids, config(request["tokens"], with_lookup))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "tokens": len(results.tokens[0])}


for warm_up in (False, True):
    answer({"lookup": warm_up, "ids": list(range(100, 132)), "tokens": 4})
print("{}", flush=True)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
