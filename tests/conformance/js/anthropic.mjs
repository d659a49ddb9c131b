// Talks to the server at argv[2] through the unmodified SDK and prints what it saw as one JSON object.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "x", maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const base = { model: "mock", max_tokens: 12, messages };
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 8 }, unit: { enum: ["C", "F"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
const tools = [{ name: "weather", description: "The weather of a city.", input_schema: schema }];

async function failure(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, type: error.error?.error?.type ?? null };
  }
}

async function drain(stream) {
  for await (const _ of stream);
}

const seen = {};
seen.whole = await client.messages.create(base);

const stream = client.messages.stream(base);
seen.pieces = [];
stream.on("text", (text) => seen.pieces.push(text));
seen.streamed = await stream.finalMessage();

seen.raw = [];
for await (const event of await client.messages.create({ ...base, stream: true })) seen.raw.push(event.type);

const choice = { type: "tool", name: "weather", disable_parallel_tool_use: true };
seen.tool = await client.messages.stream({ ...base, max_tokens: 300, tools, tool_choice: choice }).finalMessage();

const thinking = { type: "enabled", budget_tokens: 20 };
seen.thinking = await client.messages.stream({ ...base, max_tokens: 60, thinking }).finalMessage();

seen.counted = await client.messages.countTokens({ model: "mock", messages });
seen.models = [];
for await (const model of client.models.list()) seen.models.push(model.id);

seen.refused = await failure(client.messages.create({ ...base, messages: [] }));
const fault = (value) => ({ headers: { "llmlab-fault": value } });
seen.overloaded = await failure(client.messages.create(base, fault("status=529x1000")));
seen.cut = await failure(
  client.messages.create({ ...base, max_tokens: 200, stream: true }, fault("drop=900")).then(drain),
);

const left = await client.messages.create({ ...base, max_tokens: 3000, stream: true });
for await (const _ of left) break;

const abort = new AbortController();
const aborted = client.messages.create({ ...base, max_tokens: 3000 }, { signal: abort.signal });
setTimeout(() => abort.abort(), 100);
seen.aborted = await failure(aborted);

console.log(JSON.stringify(seen));
