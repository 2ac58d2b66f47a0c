"""OpenVINO GenAI's side of `cargo xtask bench-day`: a part of a day, one JSON line.

usage: genai_day.py person DAY CHAT EMBED RERANK DIGEST STARTED
       genai_day.py background DAY DIGEST EMBED

DAY is a file of `day.rs`; STARTED the Unix time at which this program was started. A program has one model at
a time that computes, so the background is a process of its own, and ends with its standard input. Prefixes are
cached, and all else is the pipelines' default. Documents are scored by OpenVINO itself: TextRerankPipeline 2026.4.1
ends the process by writing past its memory (`free(): invalid next size`) within some tens of calls.
"""
import json, subprocess, sys, threading, time  # noqa: E401

import numpy as np
import openvino
import openvino_genai as genai
from tokenizers import Tokenizer

Tensor = openvino.Tensor
role, day = sys.argv[1], json.load(open(sys.argv[2]))


def pipeline(model, gigabytes):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = gigabytes
    scheduler.max_num_batched_tokens = 256
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})


def add(pipe, number, ids, tokens):
    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    return pipe.add_request(number, Tensor(np.array([ids], dtype=np.int64)), config)


def read(handle):
    ids = []
    while handle.can_read():
        for output in handle.read().values():
            ids += output.generated_ids
    return ids


def is_running(handle):
    return handle.get_status() == genai.GenerationStatus.RUNNING


def background():
    digests, vectors = pipeline(sys.argv[3], 1), genai.TextEmbeddingPipeline(sys.argv[4], "CPU")
    done, over = {"tokens": 0, "passages": 0}, threading.Event()

    def index():
        number = 0
        while not over.is_set():
            texts = day["passages"][number % len(day["passages"])]
            vectors.embed_documents(texts)
            done["passages"] += len(texts)
            number += 1
            time.sleep(0.5)

    def write():
        number, running = 0, []
        while not over.is_set():
            while len(running) < 2:
                ids = day["digests"][number % len(day["digests"])]
                running.append((add(digests, number, ids, day["digest"]), len(ids)))
                number += 1
            digests.step()
            for handle, tokens in running:
                read(handle)
                if not is_running(handle):
                    done["tokens"] += tokens + day["digest"]
            running = [each for each in running if is_running(each[0])]

    threads = [threading.Thread(target=work, daemon=True) for work in (index, write)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    over.set()
    print(json.dumps(done), flush=True)


def answer(pipe, number, conversation, tokens):
    """Ids, and the seconds to the first and to the last of them."""
    begin, first, ids = time.perf_counter(), None, []
    handle = add(pipe, number, conversation, tokens)
    while is_running(handle) or handle.can_read():
        if is_running(handle):
            pipe.step()
        ids += read(handle)
        if ids and first is None:
            first = time.perf_counter() - begin
    return ids, first, time.perf_counter() - begin


class Scores:
    def __init__(self, model):
        self.tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
        self.tokenizer.enable_padding()
        self.model = openvino.Core().compile_model(f"{model}/openvino_model.xml", "CPU")

    def rerank(self, query, documents):
        pairs = self.tokenizer.encode_batch([(query, document) for document in documents])
        inputs = {
            "input_ids": np.array([pair.ids for pair in pairs]),
            "attention_mask": np.array([pair.attention_mask for pair in pairs]),
            "token_type_ids": np.array([pair.type_ids for pair in pairs]),
        }
        scores = self.model(inputs)[0].ravel()
        return np.argsort(-scores)


def memory(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def person():
    chat, embed, rerank, digest, started = sys.argv[3:8]
    other = subprocess.Popen(
        [sys.executable, __file__, "background", sys.argv[2], digest, embed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    vectors, scores = genai.TextEmbeddingPipeline(embed, "CPU"), Scores(rerank)
    pipe = pipeline(chat, 4)
    begin = time.perf_counter()
    start_ms = (time.time() - float(started)) * 1e3
    conversations, times = day["instructions"], []
    for number, turn in enumerate(day["turns"]):
        if number > 0:
            time.sleep(day["thinking_s"])
        asked = time.perf_counter()
        vectors.embed_query(turn["query"])
        scores.rerank(turn["query"], turn["documents"])
        search_ms = (time.perf_counter() - asked) * 1e3
        conversation = conversations[turn["agent"]]
        conversation += turn["question"]
        call, _, call_s = answer(pipe, 2 * number, conversation, day["call"])
        conversation += call
        time.sleep(day["tool_s"])
        conversation += turn["result"]
        said, first_s, answer_s = answer(pipe, 2 * number + 1, conversation, day["answer"])
        conversation += said
        print(f"question {number + 1}: {search_ms / 1e3 + call_s + first_s:.1f} s", file=sys.stderr)
        times.append(
            {
                "start_ms": start_ms if number == 0 else 0.0,
                "search_ms": search_ms,
                "call_ms": call_s * 1e3,
                "first_ms": first_s * 1e3,
                "answer_ms": answer_s * 1e3,
                "ids": call + said,
            }
        )
    peak_bytes = memory("self") + memory(other.pid)
    secs = time.perf_counter() - begin
    other.stdin.close()
    done = json.loads(other.stdout.read().splitlines()[-1])
    print(json.dumps({"turns": times, "secs": secs, "done": done, "peak_bytes": peak_bytes}), flush=True)


{"person": person, "background": background}[role]()
