// Talks to the server at argv[2] through the unmodified SDK and prints what it saw as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "x", maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const base = { model: "mock", max_completion_tokens: 12, messages };
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 8 }, unit: { enum: ["C", "F"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", description: "Weather.", parameters: schema } }];

async function failure(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, param: error.param ?? null };
  }
}

async function drain(stream) {
  for await (const _ of stream);
}

const seen = {};
seen.whole = await client.chat.completions.create(base);

seen.chunks = [];
const usage = { include_usage: true };
for await (const chunk of await client.chat.completions.create({ ...base, stream: true, stream_options: usage }))
  seen.chunks.push(chunk);

const stop = seen.whole.choices[0].message.content.slice(6, 8);
seen.helper = await client.chat.completions.stream({ ...base, stop }).finalChatCompletion();

const call = { tools, tool_choice: "required", parallel_tool_calls: false };
seen.tool = await client.chat.completions
  .stream({ ...base, max_completion_tokens: 300, ...call })
  .finalChatCompletion();

seen.models = [];
for await (const model of client.models.list()) seen.models.push(model.id);

seen.refused = await failure(client.chat.completions.create({ ...base, temperature: 9 }));
const fault = (value) => ({ headers: { "llmlab-fault": value } });
seen.limited = await failure(client.chat.completions.create(base, fault("status=429x1000")));
seen.cut = await failure(
  client.chat.completions.create({ ...base, max_completion_tokens: 200, stream: true }, fault("drop=900")).then(drain),
);

const left = await client.chat.completions.create({ ...base, max_completion_tokens: 3000, stream: true });
for await (const _ of left) break;

console.log(JSON.stringify(seen));
