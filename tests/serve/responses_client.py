"""What OpenAI's client gets from `/v1/responses` of a server with the tiny agent, printed for a snapshot.

Arguments: base URL, token.
"""

import json
import sys

import openai

base_url, token = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=token, max_retries=0)
asked = {"model": "tiny-agent", "input": "Remind me to call Ana at 5 pm.", "temperature": 0}

whole = client.responses.create(**asked)
print("response:", repr(whole.output_text), whole.status, whole.usage.total_tokens, whole.store)
print("retrieve:", client.responses.retrieve(whole.id).output_text == whole.output_text)

with client.responses.stream(**asked) as stream:
    events = list(stream)
    final = stream.get_final_response()
pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
print("stream:", repr("".join(pieces)), len(pieces) > 1, final.status, final.usage.total_tokens)
print("events:", [event.type for event in events if event.type != "response.output_text.delta"])
print("numbers:", [event.sequence_number for event in events] == list(range(len(events))))

second = client.responses.create(**(asked | {"input": "And at six?"}), previous_response_id=whole.id)
print("second:", second.previous_response_id == whole.id, second.usage.input_tokens_details.cached_tokens > 0)
print("cut:", client.responses.create(**asked, max_output_tokens=1).incomplete_details.reason)

schema = {
    "type": "object",
    "properties": {"who": {"type": "string", "maxLength": 12}},
    "required": ["who"],
    "additionalProperties": False,
}
tool = {"type": "function", "name": "call_contact", "description": "Call a contact", "parameters": schema, "strict": True}
called = client.responses.create(**asked, tools=[tool], tool_choice="required")
call = called.output[-1]
print("tool:", call.type, call.name, list(json.loads(call.arguments)), called.status)
with client.responses.stream(**asked, tools=[tool], tool_choice="required") as stream:
    streamed = stream.get_final_response()
print("tool, streamed:", streamed.output[-1].arguments == call.arguments)
output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
answered = client.responses.create(**(asked | {"input": [output]}), previous_response_id=called.id, tools=[tool], tool_choice="none")
print("tool output:", answered.status)
form = {"format": {"type": "json_schema", "name": "contact", "schema": schema, "strict": True}}
print("form:", list(json.loads(client.responses.create(**asked, text=form).output_text)))

client.responses.delete(whole.id)
for change in [
    {"previous_response_id": whole.id},
    {"model": "gpt-5"},
    {"input": []},
    {"tools": [{"type": "web_search"}]},
    {"background": True},
]:
    try:
        client.responses.create(**(asked | change))
    except openai.APIStatusError as error:
        print("refused:", type(error).__name__, error.body["message"].replace(whole.id, "ID"))
try:
    client.responses.retrieve(whole.id)
except openai.NotFoundError as error:
    print("refused:", type(error).__name__, error.body["message"].replace(whole.id, "ID"))
