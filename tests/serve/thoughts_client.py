"""What the clients of OpenAI and Anthropic get from a server whose model thinks, printed for a snapshot.

Arguments: base URL, token.
"""

import sys

import anthropic
import openai

base_url, token = sys.argv[1:]
system = "You answer chats in the user's name. Be brief."
question = "Status: none\nChat with Ben:\nBen: Here is the pale wagon for you."
messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]

client = openai.OpenAI(base_url=f"{base_url}/v1", api_key=token, max_retries=0)
asked = {"model": "tiny-agent", "messages": messages, "temperature": 0}
whole = client.chat.completions.create(**asked)
message = whole.choices[0].message
print("chat:", repr(message.reasoning_content), repr(message.content))
print("tokens:", whole.usage.completion_tokens_details.reasoning_tokens, whole.usage.completion_tokens)
deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
print("chat, streamed:", repr(thought), repr("".join(delta.content or "" for delta in deltas)))
again = messages + [message.to_dict(), {"role": "user", "content": "And then?"}]
print("chat, again:", client.chat.completions.create(**(asked | {"messages": again})).usage.prompt_tokens)

asked = {"model": "tiny-agent", "instructions": system, "input": question, "temperature": 0}
whole = client.responses.create(**asked)
print("response:", whole.output[0].type, repr(whole.output[0].content[0].text), repr(whole.output_text))
print("tokens:", whole.usage.output_tokens_details.reasoning_tokens, whole.usage.output_tokens)
with client.responses.stream(**asked) as stream:
    events = list(stream)
    final = stream.get_final_response()
print("response, streamed:", [item.type for item in final.output], final.output_text == whole.output_text)
print("events:", list(dict.fromkeys(event.type for event in events)))
again = [{"role": "user", "content": question}, *whole.output, {"role": "user", "content": "And then?"}]
print("response, again:", client.responses.create(**(asked | {"input": again})).usage.input_tokens)


def texts(message):
    return [(block.type, getattr(block, block.type)) for block in message.content]


client = anthropic.Anthropic(base_url=base_url, api_key=token, max_retries=0)
messages = [{"role": "user", "content": question}]
asked = {"model": "tiny-agent", "max_tokens": 40, "system": system, "messages": messages, "extra_body": {"temperature": 0}}
whole = client.messages.create(**asked)
print("message:", texts(whole))
with client.messages.stream(**asked) as stream:
    kinds = list(dict.fromkeys(event.type for event in stream))
    final = stream.get_final_message()
print("message, streamed:", texts(final) == texts(whole), kinds)
again = messages + [whole.to_param(), {"role": "user", "content": "And then?"}]
usage = client.messages.create(**(asked | {"messages": again})).usage
print("message, again:", usage.input_tokens + usage.cache_read_input_tokens)
