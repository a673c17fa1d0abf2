package indexer

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// promptTiling describes the division of work in idx_logits_prompt_cm; the names are those of
// shaders/idx_logits_prompt.comp.
type promptTiling struct {
	laneTiling     // subgroups are the tokens of a workgroup
	keyTiles   int // KEY_TILES, of m keys
}

// sharedBytes is the sum of the shared arrays: two steps of keys with their scales, and weights.
func (t promptTiling) sharedBytes() int {
	return 2*t.keyTiles*t.m*(2*cache.IndexDim+16+4) + 4*t.heads*t.subgroups
}

// registers estimates the 32-bit registers of an invocation: queries, keys of a tile, sums of two
// head tiles, weights, rows on their way, and the rest. copies is how often the device holds an
// element of a product's operands; rest are the other registers.
func (t promptTiling) registers(copies, rest int) int {
	operands := (t.heads + t.m) * cache.IndexDim / 2 / t.subgroup
	rows := t.keyTiles * t.m * (cache.IndexDim/4 + 4) / t.threads()
	return copies*operands + 2*t.m*t.n/t.subgroup + t.heads/t.parts + rows + rest
}

// constants are the specialisation constants after PAGE and FORMAT.
func (t promptTiling) constants() []uint32 {
	return opkit.Constants(t.threads(), t.subgroup, t.m, t.n, t.k, t.heads, t.parts, t.keyTiles)
}

// grid is the number of workgroups: shares of the keys, and groups of tokens. A workgroup fills one
// of the device's compute units.
func (t promptTiling) grid(tune *tuning.Logits, units, tokens, entries int) (x, y int) {
	y = opkit.CeilDiv(tokens, t.subgroups)
	return t.shares(tune, max(units, 1), y, entries), y
}

// promptTilingOf is the tiling for matrices that lie in lanes as idx_logits_lanes has found. It is
// false where the kernel cannot divide its work so.
func promptTilingOf(caps *vk.Caps, tune *tuning.Logits, cfg LogitsConfig, lanes laneTiling) (promptTiling, bool) {
	t := promptTiling{lanes, tune.PromptTiles}
	t.subgroups, t.kept = tune.PromptTokens, 0
	split, words := t.subgroups/t.keyTiles, cfg.Format.RowBytes()/4/t.parts
	switch {
	case t.threads() > int(caps.MaxWorkgroupInvocations) || t.sharedBytes() > int(caps.SharedMemory):
	case t.subgroups > t.subgroup || t.subgroups*max(t.m, t.n) > 2*t.keyTiles*t.m: // lanes for tokens, and room for theirs
	case t.subgroups%t.keyTiles != 0 || words%split != 0 || cache.IndexDim/t.k%split != 0:
	default:
		return t, true
	}
	return t, false
}

// promptFit returns that tiling if the tokens and the device are such that it is worth it.
func promptFit(caps *vk.Caps, tune *tuning.Profile, cfg LogitsConfig, lanes laneTiling) (promptTiling, bool) {
	if cfg.Raw || cfg.tops || cfg.Group < tuning.PromptGroup {
		return promptTiling{}, false
	}
	t, ok := promptTilingOf(caps, &tune.Logits, cfg, lanes)
	room := tune.Device.MatrixRegisters(t.subgroup, t.threads())
	return t, ok && t.registers(tune.Device.OperandCopies(caps), tune.Logits.OtherRegisters) <= room
}
