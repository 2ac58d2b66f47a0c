"""What OpenAI's and LangChain's clients get from a server with the tiny agent, printed for a snapshot.

Arguments: base URL, token.
"""

import sys

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

base_url, token = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=token, max_retries=0)
question = [{"role": "user", "content": "Remind me to call Ana at 5 pm."}]

print("models:", [model.id for model in client.models.list()])

whole = client.chat.completions.create(model="tiny-agent", messages=question, temperature=0)
print("chat:", repr(whole.choices[0].message.content), whole.choices[0].finish_reason, whole.usage.total_tokens)

stream = client.chat.completions.create(
    model="tiny-agent",
    messages=question,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"priority": "proactive", "flow_id": "a"},
)
chunks = list(stream)
pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
print("stream:", repr("".join(pieces)), chunks[-1].usage.total_tokens, len(pieces) > 2)

text = client.completions.create(model="tiny-agent", prompt="The", max_tokens=4, temperature=0)
print("completion:", text.choices[0].finish_reason, text.usage.completion_tokens)
ids = client.completions.create(model="tiny-agent", prompt=[5, 6, 7], max_tokens=4, temperature=0)
print("token ids:", ids.usage.prompt_tokens, ids.usage.completion_tokens)

several = client.chat.completions.create(model="tiny-agent", messages=question, n=2, seed=3, max_tokens=8)
alone = [
    client.chat.completions.create(model="tiny-agent", messages=question, seed=seed, max_tokens=8) for seed in [3, 4]
]
same = [choice.message.content for choice in several.choices] == [one.choices[0].message.content for one in alone]
print("n:", [choice.index for choice in several.choices], same, several.usage.prompt_tokens == whole.usage.prompt_tokens)
print("fingerprint:", several.system_fingerprint == whole.system_fingerprint == chunks[0].system_fingerprint)

pieces = client.chat.completions.create(model="tiny-agent", messages=question, n=3, max_tokens=4, stream=True)
ends = [choice.index for chunk in pieces for choice in chunk.choices if choice.finish_reason]
print("n, streamed:", sorted(ends))

scored = client.chat.completions.create(
    model="tiny-agent",
    messages=question,
    temperature=0,
    logprobs=True,
    top_logprobs=2,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={"7": -100},
)
content = scored.choices[0].logprobs.content
print("logprobs:", [(token.token, token.logprob <= 0, len(token.top_logprobs)) for token in content])
stream = client.chat.completions.create(
    model="tiny-agent", messages=question, temperature=0, logprobs=True, top_logprobs=2, stream=True
)
pieces = [choice.logprobs.content for chunk in stream for choice in chunk.choices if choice.logprobs]
print("logprobs, streamed:", [token.token for piece in pieces for token in piece])

echo = client.completions.create(model="tiny-agent", prompt="Call Ana at 5", max_tokens=0, echo=True, logprobs=1)
logprobs = echo.choices[0].logprobs
print("echo:", repr(echo.choices[0].text), echo.usage.completion_tokens, logprobs.tokens, logprobs.text_offset)
print("echo:", logprobs.token_logprobs[0], sum(logprobs.token_logprobs[1:]) < 0, len(logprobs.top_logprobs))

for change in [{"n": 9}, {"top_logprobs": 2}, {"logit_bias": {"2048": 1}}, {"temperature": -1}, {"model": "gpt-4"}]:
    try:
        client.chat.completions.create(**({"model": "tiny-agent", "messages": question} | change))
    except openai.APIStatusError as error:
        print("refused:", type(error).__name__, error.body["message"])
try:
    openai.OpenAI(base_url=base_url, api_key="other", max_retries=0).models.list()
except openai.AuthenticationError as error:
    print("refused:", type(error).__name__, error.body["message"])

model = ChatOpenAI(model="tiny-agent", base_url=base_url, api_key=token, temperature=0, max_retries=0)
answer = model.invoke("Remind me to call Ana at 5 pm.")
print("langchain:", repr(answer.content), answer.usage_metadata["total_tokens"])
pieces = [piece.content for piece in model.stream("Remind me to call Ana at 5 pm.")]
print("langchain stream:", repr("".join(pieces)))
scored = model.bind(logprobs=True, top_logprobs=2, presence_penalty=0.1).invoke("Remind me to call Ana at 5 pm.")
tokens = scored.response_metadata["logprobs"]["content"]
print("langchain logprobs:", [(token["token"], len(token["top_logprobs"])) for token in tokens])
model = ChatOpenAI(model="tiny-agent", base_url=base_url, api_key=token, temperature=1, n=2, seed=3, max_retries=0)
several = model.generate([[HumanMessage("Remind me to call Ana at 5 pm.")]])
print("langchain n:", len(several.generations[0]))
