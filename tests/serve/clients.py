"""What OpenAI's and LangChain's clients get from a server with the tiny agent, printed for a snapshot.

Arguments: base URL, token.
"""

import sys

import openai
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

for change in [{"n": 2}, {"temperature": -1}, {"model": "gpt-4"}]:
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
