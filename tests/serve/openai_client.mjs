// What OpenAI's client for JavaScript gets from a server with the tiny agent, printed for a snapshot.
//
// Arguments: the folder of the client's packages, base URL, token.

import { createRequire } from "node:module";

const [folder, baseURL, apiKey] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "tiny-agent";
const content = "Remind me to call Ana at 5 pm.";
const messages = [{ role: "user", content }];
const said = (name, ...values) => console.log(`${name}:`, ...values.map((value) => JSON.stringify(value)));
const refusal = async (asked) => {
  const error = await asked.then(() => undefined, (error) => error);
  said("refused", error?.constructor.name, error?.status, error?.error?.message);
};

const listed = [];
for await (const entry of client.models.list()) listed.push(entry.id);
said("models", listed);

const whole = await client.chat.completions.create({ model, messages, temperature: 0 });
said("chat", whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.total_tokens);

const asked = { model, messages, temperature: 0, stream: true, stream_options: { include_usage: true } };
let [text, pieces, usage] = ["", 0, undefined];
for await (const chunk of await client.chat.completions.create({ ...asked, priority: "proactive" })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  pieces += 1;
  usage = chunk.usage ?? usage;
}
said("stream", text, usage.total_tokens, pieces > 2);

// A stream that its reader leaves: the server hears of it, and goes on.
const left = await client.chat.completions.create(asked);
for await (const chunk of left) break;
const ids = await client.completions.create({ model, prompt: [5, 6, 7], max_tokens: 4, temperature: 0 });
said("token ids, behind a stream that was left", ids.usage.prompt_tokens, ids.usage.completion_tokens);

const schema = {
  type: "object",
  properties: { who: { type: "string", maxLength: 12 } },
  required: ["who"],
  additionalProperties: false,
};
const parameters = { name: "call_contact", description: "Call a contact", parameters: schema };
const tools = [{ type: "function", function: parameters }];
const called = await client.chat.completions.create({ model, messages, temperature: 0, tools, tool_choice: "required" });
const [call] = called.choices[0].message.tool_calls;
said("tool", call.function.name, Object.keys(JSON.parse(call.function.arguments)), called.choices[0].finish_reason);
const runner = client.chat.completions.stream({ model, messages, temperature: 0, tools, tool_choice: "required" });
const streamed = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
said("tool, streamed", streamed.function.arguments === call.function.arguments);
const response_format = { type: "json_schema", json_schema: { name: "contact", schema, strict: true } };
const formed = await client.chat.completions.create({ model, messages, temperature: 0, response_format });
said("form", Object.keys(JSON.parse(formed.choices[0].message.content)));

const first = await client.responses.create({ model, input: content, temperature: 0 });
said("response", first.output_text === whole.choices[0].message.content, first.status);
const events = [];
for await (const event of await client.responses.create({ model, input: content, temperature: 0, stream: true })) {
  events.push(event.type);
}
said("events", events[0], [...new Set(events)].length, events.at(-1));
const previous_response_id = first.id;
const second = await client.responses.create({ model, input: "And at six?", temperature: 0, previous_response_id });
said("second", second.usage.input_tokens_details.cached_tokens > 0);

await refusal(client.chat.completions.create({ model: "gpt-4", messages }));
await refusal(client.chat.completions.create({ model, messages, temperature: -1 }));
await refusal(client.embeddings.create({ model, input: "Hi" }));
await refusal(new OpenAI({ baseURL, apiKey: "other", maxRetries: 0 }).chat.completions.create({ model, messages }));
