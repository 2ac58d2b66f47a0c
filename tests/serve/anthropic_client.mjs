// What Anthropic's client for JavaScript gets from a server with the tiny agent, printed for a snapshot.
//
// Arguments: the folder of the client's packages, base URL, token.

import { createRequire } from "node:module";

const [folder, baseURL, apiKey] = process.argv.slice(2);
const Anthropic = createRequire(`${folder}/`)("@anthropic-ai/sdk");
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const model = "tiny-agent";
const messages = [{ role: "user", content: "Remind me to call Ana at 5 pm." }];
const asked = { model, max_tokens: 40, messages, temperature: 0 };
const said = (name, ...values) => console.log(`${name}:`, ...values.map((value) => JSON.stringify(value)));
const refusal = async (asked) => {
  const error = await asked.then(() => undefined, (error) => error);
  said("refused", error?.constructor.name, error?.status, error?.error?.error?.message);
};

const whole = await client.messages.create(asked);
said("message", whole.content.map((block) => [block.type, block.text]), whole.stop_reason, whole.role);
const count = await client.messages.countTokens({ model, messages });
said("count", count.input_tokens, count.input_tokens === whole.usage.input_tokens + whole.usage.cache_read_input_tokens);

const stream = client.messages.stream(asked);
let pieces = 0;
stream.on("text", () => (pieces += 1));
const final = await stream.finalMessage();
said("stream", final.content[0].text === whole.content[0].text, pieces > 1, final.stop_reason);
const events = [];
for await (const event of await client.messages.create({ ...asked, stream: true })) events.push(event.type);
said("events", events[0], [...new Set(events)].sort(), events.at(-1));

const input_schema = {
  type: "object",
  properties: { who: { type: "string", maxLength: 12 } },
  required: ["who"],
  additionalProperties: false,
};
const tools = [{ name: "call_contact", description: "Call a contact", input_schema }];
const tooled = { ...asked, tools, tool_choice: { type: "any" }, max_tokens: 200 };
const called = await client.messages.create(tooled);
const call = called.content.at(-1);
said("tool", call.type, call.name, Object.keys(call.input), called.stop_reason);
const again = (await client.messages.stream(tooled).finalMessage()).content.at(-1);
said("tool, streamed", JSON.stringify(again.input) === JSON.stringify(call.input));
const result = { type: "tool_result", tool_use_id: call.id, content: "done" };
const turns = [...messages, { role: "assistant", content: called.content }, { role: "user", content: [result] }];
const answered = await client.messages.create({ ...tooled, messages: turns, tool_choice: { type: "none" } });
said("tool result", answered.stop_reason);

await refusal(client.messages.create({ ...asked, model: "claude" }));
await refusal(client.messages.create({ ...asked, messages: [] }));
await refusal(new Anthropic({ baseURL, apiKey: "other", maxRetries: 0 }).messages.create(asked));
