"""OpenVINO GenAI's side of `cargo xtask bench-texts`.

usage: genai_texts.py first MODEL TEXT
       genai_texts.py rates MODEL TEXTS SECONDS
       genai_texts.py vectors MODEL TEXTS

TEXTS is a JSON file with a list of texts for each rate, which are asked for in one call, again and again.
"""
import json, sys, time  # noqa: E401

import openvino_genai as genai

role, model = sys.argv[1:3]
config = genai.TextEmbeddingPipeline.Config()
config.pooling_type = genai.TextEmbeddingPipeline.PoolingType.MEAN
pipeline = genai.TextEmbeddingPipeline(model, "CPU", config)


def rate(texts, span):
    pipeline.embed_documents(texts)
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < span:
        pipeline.embed_documents(texts)
        done += len(texts)
    return done / (time.perf_counter() - begin)


if role == "first":
    print(pipeline.embed_query(sys.argv[3])[:2], flush=True)
elif role == "rates":
    print(json.dumps([rate(texts, float(sys.argv[4])) for texts in json.load(open(sys.argv[3]))]))
else:
    print(json.dumps([list(pipeline.embed_query(text)) for text in json.load(open(sys.argv[3]))]))
