#!/usr/bin/env bash
# The npm client openai joins a streamed answer to one message, stream.finalChatCompletion(). Of
# content every piece is in it. Of a text field that the client has no name for, such as the
# reasoning_content that servers of DeepSeek's models send, only the last piece is: each piece
# replaces the one before. Nothing warns of it, and the pieces arrive whole in the "chunk" events.
#
# One would expect either all of the text or none. A program that logs or sends back the reasoning
# of a final message has its last word or two; it has to join the chunks itself.
set -euo pipefail
version=7.59.0
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
npm init -y >npm.log 2>&1 && npm install --no-audit --no-fund "openai@$version" >>npm.log 2>&1 || { cat npm.log; exit 1; }

cat >main.mjs <<'EOF'
import http from "node:http";
import OpenAI from "openai";

const deltas = [{ role: "assistant", reasoning_content: "Two and " }, { reasoning_content: "two " },
  { reasoning_content: "make four." }, { content: "Fo" }, { content: "ur" }];
const server = http.createServer((request, response) => {
  request.resume().on("end", () => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const [i, delta] of [...deltas, {}].entries())
      response.write(`data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "m",
        choices: [{ index: 0, delta, finish_reason: i < deltas.length ? null : "stop" }] })}\n\n`);
    response.end("data: [DONE]\n\n");
  });
});
server.listen(0, "127.0.0.1", async () => {
  const client = new OpenAI({ apiKey: "none", baseURL: `http://127.0.0.1:${server.address().port}/v1` });
  const stream = client.chat.completions.stream({ model: "m", messages: [{ role: "user", content: "2+2?" }] });
  let chunks = "";
  stream.on("chunk", (c) => (chunks += c.choices[0].delta.reasoning_content ?? ""));
  const { message } = (await stream.finalChatCompletion()).choices[0];
  console.log("reasoning of the chunks: " + chunks);
  console.log("reasoning of the message: " + message.reasoning_content);
  console.log("content of the message: " + message.content);
  server.close();
});
EOF
node main.mjs >seen
cat >expected <<'EOF'
reasoning of the chunks: Two and two make four.
reasoning of the message: make four.
content of the message: Four
EOF
echo "openai $version"
cat seen
diff expected seen >/dev/null || { echo "changed: this was seen before:"; cat expected; exit 1; }
