#!/usr/bin/env bash
# The npm client openai sends an event "tool_calls.function.arguments.done" from the stream of a
# chat completion. It does not say that the arguments of a call are done:
#   - chunks whose pieces of two calls alternate (each piece has its call's index) give the event
#     after each piece, with arguments that are no JSON yet, and once before any piece;
#   - where a whole call comes in the chunk that has the finish_reason, the event never comes.
# The final message is right in both cases.
#
# One would expect the event once a call, with whole arguments. A server is safe if it sends calls
# one after the other and the finish_reason in a chunk of its own; a client waits for the message.
set -euo pipefail
version=7.59.0
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
npm init -y >npm.log 2>&1 && npm install --no-audit --no-fund "openai@$version" >>npm.log 2>&1 || { cat npm.log; exit 1; }

cat >main.mjs <<'EOF'
import http from "node:http";
import OpenAI from "openai";

const call = (index, text, name) =>
  ({ index, ...(name && { id: "id" + index, type: "function" }), function: { ...(name && { name }), arguments: text } });
const streams = {
  "one after the other": [
    [[call(0, "", "f")]], [[call(0, '{"x":1}')]], [[call(1, "", "g")]], [[call(1, '{"y":2}')]], [[], "tool_calls"]],
  "by turns": [[[call(0, "", "f"), call(1, "", "g")]], [[call(0, '{"x"')]], [[call(1, '{"y"')]], [[call(0, ":1}")]], [[call(1, ":2}")]],
    [[], "tool_calls"]],
  "with the finish": [[[]], [[call(0, '{"x":1}', "f")], "tool_calls"]],
};
const server = http.createServer((request, response) => {
  let body = "";
  request.on("data", (d) => (body += d)).on("end", () => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const [calls, finish] of streams[JSON.parse(body).model])
      response.write(`data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "m",
        choices: [{ index: 0, delta: { role: "assistant", ...(calls.length && { tool_calls: calls }) },
          finish_reason: finish ?? null }] })}\n\n`);
    response.end("data: [DONE]\n\n");
  });
});
server.listen(0, "127.0.0.1", async () => {
  const client = new OpenAI({ apiKey: "none", baseURL: `http://127.0.0.1:${server.address().port}/v1` });
  for (const model of Object.keys(streams)) {
    const stream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "go" }] });
    const done = [];
    stream.on("tool_calls.function.arguments.done", (e) => done.push(e.name + e.arguments));
    const { message } = (await stream.finalChatCompletion()).choices[0];
    const calls = message.tool_calls.map((c) => c.function.name + c.function.arguments);
    console.log(`${model}: done ${done.join(" ") || "never"}; message ${calls.join(" ")}`);
  }
  server.close();
});
EOF
node main.mjs >seen
cat >expected <<'EOF'
one after the other: done f{"x":1} g{"y":2}; message f{"x":1} g{"y":2}
by turns: done f g f{"x" g{"y" f{"x":1} g{"y":2}; message f{"x":1} g{"y":2}
with the finish: done never; message f{"x":1}
EOF
echo "openai $version"
cat seen
diff expected seen >/dev/null || { echo "changed: this was seen before:"; cat expected; exit 1; }
