// A session with the usual client for Node: every call that people try first, as clients_test.go
// starts it. COUNTING continues with the next character, SPEAKING thinks and calls tools, LOCKED
// wants a key.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = (url, apiKey = "none") => new OpenAI({ baseURL: url + "/v1", apiKey, maxRetries: 0 });
const counting = client(process.env.COUNTING);
const speaking = client(process.env.SPEAKING);
const say = (content) => [{ role: "user", content }];
const refused = (call, kind, param, code) =>
  assert.rejects(call, (e) => {
    assert.ok(e instanceof kind, `${e.name}: ${e.message}`);
    assert.equal(e.param, param, e.message);
    assert.equal(e.code, code, e.message);
    return true;
  });

const models = await counting.models.list();
assert.deepEqual(models.data.map((m) => m.id), ["m"]);
assert.equal((await counting.models.retrieve("m")).max_model_len, 600);
await refused(counting.models.retrieve("gpt-4"), OpenAI.NotFoundError, null, "model_not_found");

// Completions: token ids and text, whole and in pieces.
const three = { model: "m", prompt: [97, 98, 99], max_tokens: 3, temperature: 0 };
const whole = await counting.completions.create({ ...three, logprobs: 2 });
assert.deepEqual(whole.choices[0].token_ids, [100, 101, 102]);
assert.equal(whole.choices[0].text, "def");
assert.equal(Object.keys(whole.choices[0].logprobs.top_logprobs[0]).length, 2);
assert.equal((await counting.completions.create({ ...three, prompt: "abc" })).choices[0].text, "def");
let text = "";
for await (const piece of await counting.completions.create({ ...three, stream: true })) text += piece.choices[0].text;
assert.equal(text, "def");
const seeded = { ...three, temperature: 50, seed: 5, top_p: 0.9 };
assert.equal((await counting.completions.create(seeded)).choices[0].text, (await counting.completions.create(seeded)).choices[0].text);
assert.equal((await counting.completions.create({ ...three, max_tokens: 20, stop: ["f"] })).choices[0].text, "de");
const several = await counting.completions.create({ ...three, prompt: ["abc", "x"], n: 2 });
assert.deepEqual(several.choices.map((c) => c.text), ["def", "def", "yz{", "yz{"]);

// Conversations.
const talk = { model: "m", messages: say("abc"), temperature: 0, max_completion_tokens: 3 };
const answer = await counting.chat.completions.create(talk);
assert.equal(answer.choices[0].message.content, "<=>");
assert.equal(answer.choices[0].finish_reason, "length");
assert.equal(answer.usage.total_tokens, 9);
const stream = counting.chat.completions.stream({ ...talk, stream_options: { include_usage: true } });
assert.equal((await stream.finalChatCompletion()).choices[0].message.content, "<=>");
assert.equal((await stream.totalUsage()).completion_tokens, 3);

// Tools: whole, in pieces, and run by the client.
const tools = [{ type: "function", function: { name: "f", parameters: { type: "object", properties: { a: { type: "string" } } } } }];
const asked = { model: "m", messages: say("abc"), tools, temperature: 0, reasoning_effort: "high", stop_token_ids: [299] };
const called = (await speaking.chat.completions.create(asked)).choices[0];
assert.equal(called.finish_reason, "tool_calls");
assert.equal(called.message.content, null);
assert.equal(called.message.reasoning_content, "hm");
assert.deepEqual(JSON.parse(called.message.tool_calls[0].function.arguments), { a: 'x"y' });
const pieces = speaking.chat.completions.stream(asked);
let done = 0;
pieces.on("tool_calls.function.arguments.done", (c) => { done++; assert.ok(["f", "g"].includes(c.name)); });
const put = (await pieces.finalChatCompletion()).choices[0].message.tool_calls;
assert.deepEqual(put.map((c) => [c.function.name, JSON.parse(c.function.arguments)]), [["f", { a: 'x"y' }], ["g", {}]]);
assert.equal(done, 2);
const results = put.map((c) => ({ role: "tool", tool_call_id: c.id, content: "done" }));
await speaking.chat.completions.create({ ...asked, messages: [...asked.messages, called.message, ...results.slice(0, 1)] });

// A client that leaves.
const leave = new AbortController();
const long = await counting.chat.completions.create({ ...talk, max_completion_tokens: 500, stream: true }, { signal: leave.signal });
for await (const _ of long) {
  leave.abort();
  break; // node 20 may never settle the next one
}
assert.equal(long.controller.signal.aborted, true);

// Errors are the client's own.
await refused(counting.chat.completions.create({ ...talk, model: "gpt-4" }), OpenAI.NotFoundError, null, "model_not_found");
await refused(counting.chat.completions.create({ ...talk, temperature: -1 }), OpenAI.BadRequestError, "temperature", "invalid_value");
await refused(counting.chat.completions.create({ ...talk, tools, tool_choice: "required" }), OpenAI.BadRequestError, "tool_choice", "invalid_value");
await refused(counting.chat.completions.create({ ...talk, messages: say([{ type: "image_url", image_url: { url: "data:," } }]) }),
  OpenAI.BadRequestError, "messages[0].content[0].type", "invalid_value");
await refused(counting.responses.create({ model: "m", input: "abc" }), OpenAI.NotFoundError, null, "not_found");
await refused(counting.embeddings.create({ model: "m", input: "abc" }), OpenAI.NotFoundError, null, "not_found");
await refused(client(process.env.LOCKED, "guess").models.list(), OpenAI.AuthenticationError, null, "invalid_api_key");
assert.equal((await client(process.env.LOCKED, "secret").models.list()).data.length, 1);
console.log("ok");
