package cache

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// SaveStateConfig says what a SaveState is built for.
type SaveStateConfig struct {
	Compression Compression
	Page        int    // tokens per page of the state cache
	MaxBytes    uint64 // size of the largest pool; 0: whatever a descriptor of the device can hold
	Variant     string // "" picks the best
}

// SaveStateArgs are the operands of saving the states of a step, with C =
// Compression.Channels().
type SaveStateArgs struct {
	KvScore   tensor.Tensor // [N, 2*C] f32, N >= T: the projection's kv values, then its scores
	Ape       tensor.Tensor // [Ratio, C] f32, the positional term of the scores
	Positions tensor.Tensor // [N] i32, N >= T
	Slots     tensor.Tensor // [T] i64 state slots; negative ones and those beyond the pool are skipped
	State     StateCache    // written: the slots named, nothing else
}

// SaveState stores what the tokens of a step contribute to compressed entries: for
// token i at position p >= 0 with state slot s,
//
//	state[s].kv    = kv_score[i][:C]
//	state[s].score = kv_score[i][C:] + ape[p % Ratio]
//
// A token at a negative position is skipped. Two tokens must not name one slot.
// All of a step's states have to be saved before Compress reads any; recording
// SaveState first is enough.
//
// The definition is SaveStateRef; results are equal byte for byte.
//
// Source: vLLM save_partial_states (models/deepseek_v4/compressor.py).
type SaveState struct {
	dev *vk.Device
	cfg SaveStateConfig
	built
	kernel *vk.Kernel
}

// saveInvocations is the size of a workgroup, which stores a token's state.
const saveInvocations = 128

// NewSaveState chooses the variant and builds its kernel, which the device owns.
//
// Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewSaveState(dev *vk.Device, cfg SaveStateConfig) (*SaveState, error) {
	const op = "save state"
	if _, err := NewStateLayout(cfg.Compression, cfg.Page, 0); err != nil {
		return nil, pkg.Wrap(op, err)
	}
	c := cfg.Compression
	variant, k, err := pkg.Build(dev, op, cfg.Variant, cfg.MaxBytes, opkit.Spec{
		Stem: "kv_save_state", Bindings: compressAccess(vk.Write)[:compressBound+2], Bound: compressBound,
		Push:      kvCompressPush{},
		Constants: opkit.Constants(saveInvocations, 1, cfg.Page, c.Ratio, int(opkit.Bit(0, c.Overlap)), c.Dim),
	})
	if err != nil {
		return nil, err
	}
	return &SaveState{dev: dev, cfg: cfg, built: variant, kernel: k}, nil
}

// Record checks the arguments and records the operation. Slots and positions are
// read when the commands run. Errors: *vk.ArgumentError, with nothing recorded;
// those of vk.Recorder.Dispatch.
func (x *SaveState) Record(rec *vk.Recorder, a SaveStateArgs) error {
	const op = "save state"
	c := x.cfg.Compression
	tokens := opkit.DimOrZero(a.Slots, 0)
	if err := opkit.FirstError(
		checkState(x.dev, op, x.Variant(), a.State, c, x.cfg.Page),
		pkg.CheckRows(op, "Slots", a.Slots, tensor.I64, -1),
		checkInputs(op, c, a.KvScore, a.Ape),
		checkTokens(op, "Positions", a.Positions, tensor.I32, tokens),
	); err != nil {
		return err
	}
	if tokens > a.KvScore.Shape[0] {
		return pkg.Wrong(op, "KvScore", a.KvScore, "at least the %d rows of Slots", tokens)
	}
	if tokens == 0 {
		return nil
	}
	targets := []opkit.Target{
		{Name: "KvScore", T: a.KvScore, Access: vk.Read, Align: 16},
		{Name: "State.Pool", T: a.State.Pool, Access: vk.Write, Align: poolAlign},
	}
	if err := pkg.Reach(x.dev, op, x.Variant(), targets...); err != nil {
		return err
	}
	push := kvCompressPush{
		KvScoreAddr: a.KvScore.View().Address(),
		StateAddr:   a.State.Pool.View().Address(), StateUnits: uint32(a.State.Layout.Stride / poolAlign),
		StatePages: uint32(a.State.pages()), Tokens: uint32(tokens),
	}
	bind := slices.Repeat([]vk.View{x.dev.Dummy()}, compressBound)
	bind[0], bind[2], bind[compressBound-1] = a.Positions.View(), a.Slots.View(), a.Ape.View()
	return pkg.Dispatch(rec, op, x.Variant(), vk.Dispatch{
		Kernel: x.kernel, Groups: [3]uint32{strided(x.dev, tokens, 1), 1, 1}, Bind: bind, Push: vk.Bytes(&push),
	}, targets...)
}

// checkInputs checks what states are made of.
func checkInputs(op string, c Compression, kvScore, ape tensor.Tensor) error {
	return opkit.FirstError(pkg.CheckRows(op, "KvScore", kvScore, tensor.F32, -1, 2*c.Channels()),
		pkg.CheckRows(op, "Ape", ape, tensor.F32, c.Ratio, c.Channels()))
}

// checkState proves that a state cache is what an operation was built for and that
// its variant can reach it.
func checkState(dev *vk.Device, op, variant string, s StateCache, c Compression, page int) error {
	if err := s.check(op); err != nil {
		return err
	}
	if s.Layout.Page != page || s.Layout.Channels != c.Channels() {
		return pkg.Wrong(op, "State.Layout", fmt.Sprintf("%d channels, %d tokens a page", s.Layout.Channels, s.Layout.Page),
			"%d channels, %d tokens a page, which the kernel was built for", c.Channels(), page)
	}
	return pkg.Reach(dev, op, variant, opkit.Target{Name: "State.Pool", T: s.Pool, Align: poolAlign})
}

// checkTokens proves that an array has an element for each of the tokens.
func checkTokens(op, name string, t tensor.Tensor, dt tensor.DType, tokens int) error {
	if err := pkg.CheckRows(op, name, t, dt, -1); err != nil {
		return err
	}
	if t.Shape[0] < tokens {
		return pkg.Wrong(op, name, t, "at least %d tokens", tokens)
	}
	return nil
}
