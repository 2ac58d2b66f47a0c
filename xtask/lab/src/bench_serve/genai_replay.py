"""OpenVINO GenAI's side of `cargo xtask bench-serve`: replays a trace, prints what became of each request.

usage: genai_replay.py MODEL TRACE open|at-once

One thread, as its own server has: requests that are due are added, then the pipeline makes a step. With
`at-once` all are due at the start. Times count from when a request was due. The object that is printed is that
of `heg bench-serve --json`, without figures. Only openvino_genai and numpy are imported.
"""
import json, sys, time  # noqa: E401

import numpy as np
import openvino_genai as genai

# openvino_genai has imported openvino already; this costs nothing.
Tensor = sys.modules["openvino"].Tensor

model, trace, mode = sys.argv[1:4]
requests = [json.loads(line) for line in open(trace, encoding="utf-8") if line.strip()]
if mode == "at-once":
    for request in requests:
        request["at_ms"] = 0

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.max_num_batched_tokens = 256
scheduler.dynamic_split_fuse = True
scheduler.enable_prefix_caching = False
pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})


def config(tokens):
    chosen = genai.GenerationConfig()
    chosen.max_new_tokens = tokens
    chosen.ignore_eos = True
    chosen.do_sample = False
    return chosen


def add(number, ids, tokens):
    return pipeline.add_request(number, Tensor(np.array([ids], dtype=np.int64)), config(tokens))


class Answer:
    def __init__(self, number, request, due):
        self.request, self.due = request, due
        self.tokens, self.first, self.last, self.gap = 0, None, due, 0.0
        self.handle = add(number, request["prompt"], request["output_tokens"])

    def read(self, now):
        """Takes what the last step made; says whether the answer is whole."""
        while self.handle.can_read():
            for output in self.handle.read().values():
                self.note(len(output.generated_ids), now)
        return self.handle.get_status() != genai.GenerationStatus.RUNNING

    def note(self, tokens, now):
        if tokens == 0:
            return
        if self.first is None:
            self.first = now
        else:
            self.gap = max(self.gap, now - self.last)
        self.last = now
        self.tokens += tokens

    def outcome(self, now):
        finished = self.handle.get_status() == genai.GenerationStatus.FINISHED
        return {
            "class": self.request["class"],
            "at_ms": self.request["at_ms"],
            "prompt_tokens": self.request["prompt_tokens"],
            "asked_tokens": self.request["output_tokens"],
            "output_tokens": self.tokens,
            "ttft_ms": ((self.first or now) - self.due) * 1e3,
            "latency_ms": (now - self.due) * 1e3,
            "gap_ms_max": self.gap * 1e3,
            "failure": None if finished else str(self.handle.get_status()),
        }


warm_up = add(len(requests), list(range(10, 310)), 4)
while pipeline.has_non_finished_requests():
    pipeline.step()

start = time.perf_counter()
waiting = list(enumerate(requests))
running, outcomes = {}, {}
while waiting or running:
    now = time.perf_counter()
    while waiting and start + waiting[0][1]["at_ms"] / 1e3 <= now:
        number, request = waiting.pop(0)
        running[number] = Answer(number, request, start + request["at_ms"] / 1e3)
    if not running:
        time.sleep(max(0.0, start + waiting[0][1]["at_ms"] / 1e3 - now))
        continue
    pipeline.step()
    now = time.perf_counter()
    for number, answer in list(running.items()):
        if answer.read(now):
            outcomes[number] = answer.outcome(now)
            del running[number]
print(json.dumps({"requests": [outcomes[number] for number in sorted(outcomes)]}), flush=True)
