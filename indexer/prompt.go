package indexer

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// promptTiling is how idx_logits_prompt_cm divides its work; the names are those of
// shaders/idx_logits_prompt.comp.
type promptTiling struct {
	laneTiling     // subgroups is the tokens of a workgroup
	keyTiles   int // KEY_TILES, of m keys that are decoded at a time
}

// sharedBytes is the sum of the shared arrays: two steps of keys with their scales, and weights.
func (t promptTiling) sharedBytes() int {
	return 2*t.keyTiles*t.m*(2*D+16+4) + 4*t.heads*t.subgroups
}

// constants are the specialisation constants after PAGE and FORMAT.
func (t promptTiling) constants() []uint32 {
	return append(opkit.Words(t.threads(), t.subgroup, t.m, t.n, t.k, t.heads, t.parts, t.keyTiles), uint32(tuning.Trial("score")))
}

// promptFit returns the tiling for matrices that lie as idx_logits_lanes found; false if there is none.
func promptFit(caps *vk.Caps, tune *tuning.Logits, cfg LogitsConfig, lanes laneTiling) (promptTiling, bool) {
	t := promptTiling{laneTiling: lanes}
	t.subgroups, t.keyTiles = 8, 4
	if tuning.Trial("four") == 1 {
		t.subgroups, t.keyTiles = 4, 2
	}
	if cfg.Raw || cfg.tops || tuning.Trial("prompt") == 0 {
		return t, false
	}
	split := t.subgroups / t.keyTiles
	words := cfg.Format.RowBytes() / t.parts / 4
	switch {
	case t.subgroups > t.subgroup || t.threads() > int(caps.MaxWorkgroupInvocations) || t.sharedBytes() > int(caps.SharedMemory):
	case t.subgroups*t.n > 2*t.keyTiles*t.m || words%split != 0 || D/t.k%split != 0:
	default:
		return t, true
	}
	return t, false
}

// grid is the number of workgroups: shares of each group of tokens, and groups.
func (t promptTiling) grid(workgroups, tokens, entries int) (x, y int) {
	y = opkit.CeilDiv(tokens, t.subgroups)
	if t.subgroups == 8 {
		workgroups /= 2
	}
	x = max(1, workgroups/y)
	if y > workgroups {
		waves := opkit.CeilDiv(entries, 4096)
		x = max(1, min(waves, 4))
	}
	return min(x, opkit.CeilDiv(entries, t.keyTiles*t.m)+1), y
}
