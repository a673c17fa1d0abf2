// Writes original.json anew: what Hugging Face's tokenizers makes of its texts and tokens with
// the tokenizer.json beside it.
//
//   npm install --no-save tokenizers@0.23.2 && node record.js
const {Tokenizer} = require('tokenizers');
const fs = require('fs');
(async () => {
  const t = Tokenizer.fromFile(__dirname + '/tokenizer.json');
  const path = __dirname + '/original.json', all = JSON.parse(fs.readFileSync(path));
  for (const v of all.encode) v.ids = (await t.encode(v.text)).getIds();
  for (const v of all.decode) v.text = await t.decode(v.ids, true);
  const lines = list => '[\n' + list.map(v => JSON.stringify(v)).join(',\n') + '\n]';
  fs.writeFileSync(path, '{"encode": ' + lines(all.encode) + ',\n"decode": ' + lines(all.decode) + '}\n');
})();
