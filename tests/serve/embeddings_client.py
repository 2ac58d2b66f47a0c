"""Asks for vectors as programs do that use OpenAI's client, and prints what came back."""

import math
import sys

from openai import BadRequestError, OpenAI

client = OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
model = client.models.list().data[0].id


def length(vector):
    return math.sqrt(sum(x * x for x in vector))


texts = ["Will it rain in Oslo tomorrow?", "The cat sat on the mat.", ""]
# The client asks for base64 and decodes it, unless told otherwise.
packed = client.embeddings.create(model=model, input=texts)
listed = client.embeddings.create(model=model, input=texts, encoding_format="float")
print("object", packed.object, packed.model, packed.usage.prompt_tokens, packed.usage.total_tokens)
for a, b in zip(packed.data, listed.data):
    same = all(abs(x - y) < 1e-7 for x, y in zip(a.embedding, b.embedding))
    print(a.object, a.index, len(a.embedding), f"{length(a.embedding):.4f}", same)

one = client.embeddings.create(model=model, input=texts[0])
print("alone", one.data[0].embedding == packed.data[0].embedding)
ids = client.embeddings.create(model=model, input=[[2, 10, 11, 3], [2, 3]])
print("ids", len(ids.data), ids.usage.prompt_tokens)
short = client.embeddings.create(model=model, input=texts[0], dimensions=8)
print("dimensions", len(short.data[0].embedding), f"{length(short.data[0].embedding):.4f}")

for call in [
    lambda: client.embeddings.create(model=model, input=texts[0], dimensions=65),
    lambda: client.embeddings.create(model=model, input="cat " * 200),
    lambda: client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}]),
    lambda: client.completions.create(model=model, prompt="Hi"),
]:
    try:
        print(call())
    except BadRequestError as error:
        print(error.status_code, error.code, error.body["message"])
