"""What Anthropic's client gets from a server with the tiny agent, printed for a snapshot.

Arguments: base URL, token.
"""

import sys

import anthropic

base_url, token = sys.argv[1:]
client = anthropic.Anthropic(base_url=base_url, api_key=token, max_retries=0)
question = [{"role": "user", "content": "Remind me to call Ana at 5 pm."}]
asked = {"model": "tiny-agent", "max_tokens": 40, "messages": question, "extra_body": {"temperature": 0}}

whole = client.messages.create(**asked)
print("message:", [(block.type, block.text) for block in whole.content], whole.stop_reason, whole.role)
print("usage:", whole.usage.input_tokens + whole.usage.cache_read_input_tokens, whole.usage.output_tokens)
count = client.messages.count_tokens(model="tiny-agent", messages=question)
print("count:", count.input_tokens)

with client.messages.stream(**asked) as stream:
    pieces = list(stream.text_stream)
    final = stream.get_final_message()
print("stream:", repr("".join(pieces)), len(pieces) > 1, final.content == whole.content, final.stop_reason)
print("usage, streamed:", final.usage.output_tokens == whole.usage.output_tokens)
events = [event.type for event in client.messages.create(**asked, stream=True)]
print("events:", events[0], sorted(set(events)), events[-1])

stopped = client.messages.create(**asked, stop_sequences=["An"])
print("stop:", stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence)
system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
raw = client.messages.with_raw_response.create(**asked, system=system)
print("system:", raw.headers["heg-ignored-fields"], raw.parse().stop_reason)

schema = {
    "type": "object",
    "properties": {"who": {"type": "string", "maxLength": 12}},
    "required": ["who"],
    "additionalProperties": False,
}
tools = [{"name": "call_contact", "description": "Call a contact", "input_schema": schema}]
asked |= {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 200}
called = client.messages.create(**asked)
call = called.content[-1]
print("tool:", call.type, call.name, list(call.input), called.stop_reason)
with client.messages.stream(**asked) as stream:
    streamed = stream.get_final_message()
print("tool, streamed:", streamed.content[-1].input == call.input, streamed.stop_reason)
result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
asked["messages"] = question + [called.to_param(), {"role": "user", "content": [result]}]
asked["tool_choice"] = {"type": "none"}
print("tool result:", client.messages.create(**asked).stop_reason)

refused = {"model": "tiny-agent", "max_tokens": 5, "messages": question}
image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
for change in [
    {"model": "claude"},
    {"max_tokens": 0},
    {"messages": []},
    {"messages": [{"role": "user", "content": [image]}]},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
]:
    try:
        client.messages.create(**(refused | change))
    except anthropic.APIStatusError as error:
        print("refused:", type(error).__name__, error.body["error"]["type"], error.body["error"]["message"])
try:
    anthropic.Anthropic(base_url=base_url, api_key="other", max_retries=0).messages.create(**refused)
except anthropic.AuthenticationError as error:
    print("refused:", type(error).__name__, error.body["error"]["message"])
bearer = anthropic.Anthropic(base_url=base_url, auth_token=token, max_retries=0)
print("bearer:", bearer.messages.count_tokens(model="tiny-agent", messages=question).input_tokens == count.input_tokens)
