package attention

import "github.com/vkmla/vkmla/internal/opkit"

// MaxHeads is the largest number of query heads.
const MaxHeads = 128

// DefaultScale is the softmax scale of DeepSeek-V4, 512^-0.5.
const DefaultScale float32 = 0.044194173824159216

// pkg begins the errors of this package and makes its kernels.
const pkg = opkit.Package("attention")

// pushLayouts names the push-constant structure of each kernel; a test compares
// them with the SPIR-V.
var pushLayouts = map[string]any{
	"attn_global_topk":     attnGlobalTopkPush{},
	"attn_window_indices":  attnWindowIndicesPush{},
	"attn_c128_indices":    attnC128IndicesPush{},
	"attn_combine_indices": attnCombineIndicesPush{},
	"attn_pack_indices":    attnPackIndicesPush{},
	"attn_placed_indices":  attnPlacedIndicesPush{},
	"attn_decode":          attnDecodePush{},
	"attn_decode_lanes":    attnDecodePush{},
	"attn_decode_float8":   attnDecodePush{},
	"attn_prefill":         attnPrefillPush{},
	"attn_prefill_lanes":   attnPrefillPush{},
	"attn_merge":           attnMergePush{},
}
