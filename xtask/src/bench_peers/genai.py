"""OpenVINO GenAI's side of `cargo xtask bench-peers`: one measurement, one JSON line.

usage: genai.py micro|start-sdpa|start-pa MODEL PREFILL DECODE BATCH     (start ignores the last two)

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

mode, model, prefill, decode, batch = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
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
    pipeline.generate(prompt(prefill), config(1))
    first = time.perf_counter()
    return {
        "imports_ms": (imported - started) * 1e3,
        "start_ms": (first - imported) * 1e3,
    }


def micro():
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 256
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    begin = time.perf_counter()
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})
    loaded = time.perf_counter()

    def generate(requests, prompt_tokens, new_tokens):
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

    generate(1, prefill, 1)  # warm-up, as for ours
    first, _ = generate(1, prefill, 1)
    _, rest = generate(1, 8, decode + 1)
    _, batched = generate(batch, 8, decode + 1)
    return {
        "load_ms": (loaded - begin) * 1e3,
        "prefill_tokens_per_s": prefill / first,
        "decode_tokens_per_s": decode / rest,
        "batch_decode_tokens_per_s": batch * decode / batched,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


backends = {"start-sdpa": "SDPA", "start-pa": "PA"}
print(json.dumps(start(backends[mode]) if mode in backends else micro()), flush=True)
