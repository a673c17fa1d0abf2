package layer

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// compressor turns states of tokens into entries, or into the indexer's keys.
type compressor struct {
	compression cache.Compression
	stateMap    *cache.SlotMapping // nil without states
	entryMap    *cache.SlotMapping
	save        *cache.SaveState // nil where compress stores states itself, or there are none
	compress    *cache.Compress

	gates           tensor.Tensor // [T, compression.Columns()] f32: values, then scores
	states, entries tensor.Tensor // [T] i64: slots of the step's states and entries
	latents         tensor.Tensor // [T, Dim] bf16, of tokens that make an entry; absent unless keys are made of them
}

// build takes from cfg all but the compression and the page of states.
func (c *compressor) build(dev *vk.Device, state cache.StateCache, cfg cache.CompressConfig) (err error) {
	cfg.Compression = c.compression
	if c.compression.Ungated {
		cfg.Save = true
	} else if err = c.buildStates(dev, state, &cfg); err != nil {
		return err
	}
	if c.entryMap, err = cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: cfg.Page, Ratio: c.compression.Ratio}); err != nil {
		return err
	}
	c.compress, err = cache.NewCompress(dev, cfg)
	return err
}

// buildStates builds what keeps tokens of groups that are not complete.
func (c *compressor) buildStates(dev *vk.Device, state cache.StateCache, cfg *cache.CompressConfig) (err error) {
	cfg.StatePage = state.Layout.Page
	if c.stateMap, err = cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: cfg.StatePage, Ratio: 1}); err != nil {
		return err
	}
	if !cfg.Save {
		c.save, err = cache.NewSaveState(dev, cache.SaveStateConfig{Compression: c.compression, Page: cfg.StatePage,
			MaxBytes: state.Pool.Bytes()})
	}
	return err
}

// tensors wants scratch, for the compressor of entries or of keys.
func (c *compressor) tensors(s scratch, of string, tokens int) {
	s.Add("gates of "+of, edges|picking, &c.gates, tensor.F32, tokens, c.compression.Columns())
	s.step("states of "+of, &c.states, tensor.I64, tokens)
	s.step("slots of "+of, &c.entries, tensor.I64, tokens)
}

// recordSlots records where the step's states and entries go.
func (c *compressor) recordSlots(rec *vk.Recorder, a *StepArgs, states, entries tensor.Tensor) error {
	var err error
	if c.stateMap != nil {
		err = c.stateMap.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: states, Slots: c.states})
	}
	if err == nil {
		err = c.entryMap.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: entries, Slots: c.entries})
	}
	return err
}

// recordSave records how states are stored.
func (c *compressor) recordSave(rec *vk.Recorder, a *StepArgs, w *model.DeviceCompressor, state cache.StateCache) error {
	return c.save.Record(rec, cache.SaveStateArgs{KvScore: c.gates, Ape: w.Ape, Positions: a.Positions, Slots: c.states, State: state})
}

// record records what makes entries. to says where these go, their RoPE and where the
// states are.
func (c *compressor) record(rec *vk.Recorder, a *StepArgs, w *model.DeviceCompressor, to cache.CompressArgs) error {
	to.Positions, to.TokenToReq, to.StateSlots, to.Slots = a.Positions, a.TokenToReq, c.states, c.entries
	to.Norm, to.Latent = w.Norm, c.latents
	if c.save == nil {
		to.KvScore, to.Ape = c.gates, w.Ape
	}
	if c.compression.Ungated {
		to.TokenToReq, to.StateSlots, to.StateTable, to.State = tensor.Tensor{}, tensor.Tensor{}, tensor.Tensor{}, cache.StateCache{}
	}
	return c.compress.Record(rec, to)
}
