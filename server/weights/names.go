package weights

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/pipeline/model"
)

// A tensor has the name that released checkpoints give it, such as layers.3.ffn.gate.weight.
// transformers writes the same after "model.", or names of its modules; other tools leave something
// between the two.

// prefixes may stand in front of a name, longest first.
var prefixes = []string{"model.language_model.", "language_model.model.", "language_model.", "model."}

// spellings are parts of names as others spell them, and the released spelling.
var spellings = []struct {
	other    *regexp.Regexp
	released string
}{
	{regexp.MustCompile(`^embed_tokens\.`), "embed."},
	{regexp.MustCompile(`^lm_head\.`), "head."},
	{regexp.MustCompile(`^hc_head\.(?:hc_)?(fn|base|scale)$`), "hc_head_$1"},
	{regexp.MustCompile(`^((?:layers|mtp)\.\d+\.)(attn|ffn)_hc\.(fn|base|scale)$`), "${1}hc_${2}_$3"},
	{regexp.MustCompile(`^((?:layers|mtp)\.\d+\.)input_layernorm\.`), "${1}attn_norm."},
	{regexp.MustCompile(`^((?:layers|mtp)\.\d+\.)post_attention_layernorm\.`), "${1}ffn_norm."},
	{regexp.MustCompile(`^((?:layers|mtp)\.\d+\.)mlp\.`), "${1}ffn."},
	{regexp.MustCompile(`(\.gate)\.e_score_correction_bias$`), "$1.bias"},
	{regexp.MustCompile(`(\.(?:experts\.\d+|shared_experts))\.gate_proj\.`), "$1.w1."},
	{regexp.MustCompile(`(\.(?:experts\.\d+|shared_experts))\.up_proj\.`), "$1.w3."},
	{regexp.MustCompile(`(\.(?:experts\.\d+|shared_experts))\.down_proj\.`), "$1.w2."},
	{regexp.MustCompile(`\.weight_scale(?:_inv)?$`), ".scale"},
}

var attention = regexp.MustCompile(`^(?:layers|mtp)\.\d+\.(?:attn|self_attn)\.`)

var images = regexp.MustCompile(`^(?:vision|aligner)\.`)

// seesImages reports whether a model has tensors for images, which are not read here.
func seesImages(stored []string) bool {
	return slices.ContainsFunc(stored, func(name string) bool { return images.MatchString(strings.TrimPrefix(name, "model.")) })
}

// releasedName is the released spelling of a stored name, "" for one that is not read here.
func releasedName(stored string) string {
	name := stored
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(name, p); ok {
			name = rest
			break
		}
	}
	if attention.MatchString(name) {
		return ""
	}
	for _, s := range spellings {
		name = s.other.ReplaceAllString(name, s.released)
	}
	return name
}

// releasedNames maps released names to stored ones.
func releasedNames(stored []string) (map[string]string, error) {
	names := make(map[string]string, len(stored))
	for _, s := range stored {
		name := releasedName(s)
		if name == "" {
			continue
		}
		if other, twice := names[name]; twice {
			return nil, &model.CheckpointError{Tensor: s, Got: fmt.Sprintf("the same tensor as %s", other), Want: "one of the two"}
		}
		names[name] = s
	}
	return names, nil
}
