package attention

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// knownDecoder refuses a name that is not among opkit.Decodes, and lists all of them: each of the
// two ladders knows only its own.
func knownDecoder(variant string) error {
	var names []string
	for _, v := range opkit.Decodes() {
		names = append(names, v.Name)
	}
	if variant == "" || variant == opkit.TwoPass || slices.Contains(names, variant) {
		return nil
	}
	return pkg.Wrong("attn_decode", "variant", fmt.Sprintf("%q", variant), "one of %v", names)
}

// CanDecode reports whether NewDecoder can make the named variant for `heads` heads on an
// adapter: nil, or the error that it would return before it builds anything.
func CanDecode(a *vk.Adapter, variant string, heads int) error {
	if a == nil {
		return pkg.Wrong("decode", "adapter", "nil", "one of vk.Instance.Adapters")
	}
	if err := knownDecoder(variant); err != nil {
		return err
	}
	stem := "attn_decode"
	if rest, ok := strings.CutPrefix(variant, opkit.TwoPass); ok {
		stem, variant = "attn_prefill", rest
	}
	tune, _ := tuning.For(a)
	_, _, err := chooseBuild(tune, a, nil, stem, variant, 0, heads)
	return err
}
