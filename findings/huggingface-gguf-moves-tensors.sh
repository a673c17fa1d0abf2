#!/usr/bin/env bash
# @huggingface/gguf, with which a GGUF file's metadata are edited in a browser, changes more than
# it is asked to. Of strings it drops U+FEFF at the beginning: in a vocabulary the token
# "\ufeffusing" becomes a second "using". A header that it builds is padded to 32 bytes, whatever
# the file's general.alignment says, by which its own reader then looks for the tensors: of a file
# with 64, every other edit leaves all tensors 32 bytes from where they are sought, and the first
# reads 8 for 0.
#
# One would expect an editor that rewrites a header to keep what is not edited, and to take the
# alignment from the metadata that it is given. It has an option `alignment`, whose default is 32.
# The file opens as before, and nothing in it is refused.
set -euo pipefail
version=0.4.6
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
{ npm init -y && npm install --no-audit --no-fund --ignore-scripts "@huggingface/gguf@$version"; } >npm.log 2>&1 ||
  { cat npm.log; exit 1; }

cat >main.mjs <<'EOF'
import fs from "node:fs";
import { buildGgufHeader, gguf } from "@huggingface/gguf";

const u32 = (v) => Buffer.from(Uint32Array.of(v).buffer), u64 = (v) => Buffer.from(BigUint64Array.of(BigInt(v)).buffer);
const text = (s) => Buffer.concat([u64(Buffer.byteLength(s)), Buffer.from(s)]);
const UINT32 = 4, STRING = 8, ARRAY = 9, tokens = ["using", "\ufeffusing"];
const header = Buffer.concat([Buffer.from("GGUF"), u32(3), u64(1), u64(4),
  text("general.architecture"), u32(STRING), text("llama"), text("general.name"), u32(STRING), text("a"),
  text("general.alignment"), u32(UINT32), u32(64),
  text("tokenizer.ggml.tokens"), u32(ARRAY), u32(STRING), u64(tokens.length), ...tokens.map(text),
  text("weights"), u32(1), u64(32), u32(0), u64(0)]);
const weights = Buffer.from(Float32Array.from({ length: 32 }, (_, i) => i).buffer);
const file = Buffer.concat([header, Buffer.alloc(-header.length & 63), weights]);

// read(name, bytes) prints what the reader finds in a file.
async function read(name, bytes) {
  fs.writeFileSync("file.gguf", bytes);
  const parsed = await gguf("file.gguf", { allowLocalFile: true, typedMetadata: true });
  const read = parsed.metadata["tokenizer.ggml.tokens"].map((token) => JSON.stringify(token)).join(" ");
  const first = bytes.readFloatLE(Number(parsed.tensorDataOffset));
  console.log(`${name}: mark ${bytes.includes("\ufeff") ? "there" : "gone"}, tokens read ${read}, first weight ${first}`);
  return parsed;
}
const { typedMetadata, tensorDataOffset, tensorInfoByteRange } = await read("original", file);
for (const [letters, alignment] of [[1], [33], [33, 64]]) {
  const edited = { ...typedMetadata, "general.name": { value: "b".repeat(letters), type: STRING } };
  const built = await buildGgufHeader(new Blob([file]), edited, { littleEndian: true, tensorInfoByteRange, alignment });
  const bytes = Buffer.concat([Buffer.from(await built.arrayBuffer()), file.subarray(Number(tensorDataOffset))]);
  await read(`name of ${letters}${alignment ? `, alignment ${alignment}` : ""}`, bytes);
}
EOF
node main.mjs >seen
echo "@huggingface/gguf $version: expected each time the mark, the second token with it, and the weight 0, seen"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
original: mark there, tokens read "using" "using", first weight 0
name of 1: mark gone, tokens read "using" "using", first weight 0
name of 33: mark gone, tokens read "using" "using", first weight 8
name of 33, alignment 64: mark gone, tokens read "using" "using", first weight 0
EOF
