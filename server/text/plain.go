package text

import "encoding/json"

// Plain returns tokenizer.json of a tokenizer without merges: the added tokens, all special, then
// one for each byte.
func Plain(added ...string) ([]byte, error) {
	f := map[string]any{"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"decoder": map[string]any{"type": "ByteLevel"}}
	list, vocab := []any{}, map[string]int{}
	for i, word := range added {
		list = append(list, map[string]any{"id": i, "content": word, "special": true})
	}
	for letter, b := range alphabet() {
		vocab[string(letter)] = len(added) + int(b)
	}
	f["added_tokens"], f["model"] = list, map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}
	return json.Marshal(f)
}
