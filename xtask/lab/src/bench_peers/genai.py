"""OpenVINO GenAI's side of `cargo xtask bench-peers`: one measurement, one JSON line.

usage: genai.py micro|long|start-sdpa|start-pa MODEL PREFILL[,PREFILL] DECODE BATCH

A start takes the first prefill and ignores the last two; a long prompt is the first prefill, too, and has no batch.

Run in a fresh process each time. Only openvino_genai and numpy are imported.
"""
import time

started = time.perf_counter()
import json, resource, sys  # noqa: E401
import numpy as np
import openvino_genai as genai

# openvino_genai has imported openvino already; this costs nothing.
Tensor = sys.modules["openvino"].Tensor
imported = time.perf_counter()

mode, model = sys.argv[1:3]
prefills = [int(tokens) for tokens in sys.argv[3].split(",")]
decode, batch = map(int, sys.argv[4:6])
rng = np.random.default_rng(0)


def prompt(tokens):
    return Tensor(rng.integers(10, 15000, (1, tokens)).astype(np.int64))


def config(tokens):
    chosen = genai.GenerationConfig()
    chosen.max_new_tokens = tokens
    chosen.ignore_eos = True
    chosen.do_sample = False
    return chosen


def start(backend):
    """A chat program's way: the plain pipeline, greedy, one token."""
    pipeline = genai.LLMPipeline(model, "CPU", ATTENTION_BACKEND=backend)
    pipeline.generate(prompt(prefills[0]), config(1))
    first = time.perf_counter()
    return {
        "imports_ms": (imported - started) * 1e3,
        "start_ms": (first - imported) * 1e3,
    }


def loaded_pipeline():
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 256
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})


def generate(pipeline, requests, prompt_tokens, new_tokens):
    """Seconds to the first token of all requests, and from there to the end."""
    handles = [
        pipeline.add_request(n, prompt(prompt_tokens), config(new_tokens))
        for n in range(requests)
    ]
    begin, first = time.perf_counter(), None
    while pipeline.has_non_finished_requests():
        pipeline.step()
        if first is None and all(h.can_read() for h in handles):
            first = time.perf_counter()
    return first - begin, time.perf_counter() - first


def peak_rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def micro():
    begin = time.perf_counter()
    pipeline = loaded_pipeline()
    loaded = time.perf_counter()
    rates = {}
    for tokens in prefills:
        generate(pipeline, 1, tokens, 1)  # warm-up, as for ours
        first, _ = generate(pipeline, 1, tokens, 1)
        rates[str(tokens)] = tokens / first
    _, rest = generate(pipeline, 1, 8, decode + 1)
    _, batched = generate(pipeline, batch, 8, decode + 1)
    return {
        "load_ms": (loaded - begin) * 1e3,
        "prefill_tokens_per_s": rates,
        "decode_tokens_per_s": decode / rest,
        "batch_decode_tokens_per_s": batch * decode / batched,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def long():
    pipeline = loaded_pipeline()
    generate(pipeline, 1, 2048, 1)  # warm-up, as for ours
    first, rest = generate(pipeline, 1, prefills[0], decode + 1)
    return {
        "prefill_tokens_per_s": prefills[0] / first,
        "decode_tokens_per_s": decode / rest,
        "peak_rss_bytes": peak_rss_bytes(),
    }


backends = {"start-sdpa": "SDPA", "start-pa": "PA"}
measured = start(backends[mode]) if mode in backends else {"micro": micro, "long": long}[mode]()
print(json.dumps(measured), flush=True)
