package pipeline

import (
	"fmt"
	"math"
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNew   = "pipeline: new decode"
	opStep  = "pipeline: decode step"
	opLayer = "pipeline: decode layer"
)

// checker remembers the first thing that is wrong with a call's arguments. The
// operations check theirs too; here it is done for all of a call's operations
// before the first is recorded, under the names that the caller knows.
type checker struct {
	op  string
	dev *vk.Device
	err error
}

func (c *checker) bad(arg string, got any, want string, a ...any) {
	if c.err == nil {
		c.err = &vk.ArgumentError{Op: c.op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
	}
}

// memory checks that a tensor has the type and dimensions (-1: at least 1) and lies
// in an open buffer of the device.
func (c *checker) memory(arg string, t tensor.Tensor, dt tensor.DType, dims ...int) {
	if c.err != nil {
		return
	}
	if c.err = tensor.Check(c.op, arg, t, dt, dims...); c.err != nil {
		return
	}
	for _, n := range t.Shape {
		if n < 1 {
			c.bad(arg, t, "no empty dimension")
		}
	}
	if b := t.Buffer; c.err == nil && b.Device() != c.dev {
		c.bad(arg, "a buffer of another device", "one of %s", c.dev.Adapter().Name)
	} else if c.err == nil && b.Closed() {
		c.err = fmt.Errorf("%s: %s: buffer %q %w", c.op, arg, b.Label(), vk.ErrClosed)
	}
}

// bound is memory for a tensor that kernels reach through a descriptor.
func (c *checker) bound(arg string, t tensor.Tensor, dt tensor.DType, dims ...int) {
	if c.memory(arg, t, dt, dims...); c.err == nil {
		c.descriptor(arg, t)
	}
}

func (c *checker) descriptor(arg string, t tensor.Tensor) {
	caps := c.dev.Caps()
	switch {
	case t.Offset%caps.StorageAlignment != 0:
		c.bad(arg, fmt.Sprintf("offset %d", t.Offset), "a multiple of %d", caps.StorageAlignment)
	case t.Bytes() > caps.MaxStorageBufferRange:
		c.bad(arg, fmt.Sprintf("%d bytes", t.Bytes()), "at most %d", caps.MaxStorageBufferRange)
	}
}

// optional is bound for a tensor that may be absent.
func (c *checker) optional(arg string, t tensor.Tensor, dt tensor.DType, dims ...int) {
	if !t.IsZero() {
		c.bound(arg, t, dt, dims...)
	}
}

// cache checks a layer's cache against the one that the kernels were built for.
func (c *checker) cache(arg string, got, built cache.KVCache, descriptor bool) {
	if c.layout(arg+".Layout", got.Layout); c.err != nil {
		return
	}
	if got.Layout.Page != built.Layout.Page {
		c.bad(arg+".Layout.Page", got.Layout.Page, "%d, which the Decode was made for", built.Layout.Page)
	}
	c.memory(arg+".Pool", got.Pool, tensor.U8, -1, got.Layout.Stride)
	switch {
	case c.err != nil:
	case got.Slots() > math.MaxInt32:
		c.bad(arg+".Pool", got.Pool, "fewer than 2^31 slots")
	case got.Pool.Offset%8 != 0:
		c.bad(arg+".Pool", fmt.Sprintf("offset %d", got.Pool.Offset), "a multiple of 8")
	case descriptor:
		c.descriptor(arg+".Pool", got.Pool)
	}
}

func (c *checker) layout(arg string, l cache.Layout) {
	if want, err := cache.NewLayout(l.Page, l.Stride); c.err == nil && (err != nil || want != l) {
		c.bad(arg, fmt.Sprintf("%d slots in %d bytes", l.Page, l.Stride), "at least 1 slot, and a multiple of 8 bytes that holds them at %d each", cache.SlotBytes)
	}
}

// check checks a configuration whose Window is filled in.
func (cfg DecodeConfig) check(dev *vk.Device) error {
	c := checker{op: opNew, dev: dev}
	if dev == nil {
		c.bad("dev", "nil", "a device")
		return c.err
	}
	caps := dev.Caps()
	grid := int(min(caps.MaxWorkgroupCount[0], caps.MaxWorkgroupCount[1], caps.MaxWorkgroupCount[2]))
	switch {
	case cfg.Tokens < 1 || cfg.Tokens > grid:
		c.bad("Tokens", cfg.Tokens, "1 to %d", grid)
	case cfg.Heads < 1 || cfg.Heads > attention.MaxHeads:
		c.bad("Heads", cfg.Heads, "1 to %d", attention.MaxHeads)
	case cfg.Ratio != RatioWindow && cfg.Ratio != RatioC4A && cfg.Ratio != RatioC128A:
		c.bad("Ratio", cfg.Ratio, "1, 4 or 128")
	}
	// The largest tensors of a step are bound, T rows of each.
	perToken := caps.MaxStorageBufferRange / uint64(max(cfg.Tokens, 1))
	if c.err == nil && uint64(cfg.Heads)*attention.D*2 > perToken {
		c.bad("Tokens", cfg.Tokens, "at most %d with %d heads, whose queries a descriptor can hold", caps.MaxStorageBufferRange/uint64(cfg.Heads*attention.D*2), cfg.Heads)
	}
	// Whole lists of 128, because the lists of compressed entries grow by that.
	widest := perToken / 4 / 128 * 128
	width := func(arg string, v int, each uint64) {
		if limit := min(widest*each, math.MaxInt32); v < 1 || uint64(v) > limit {
			c.bad(arg, v, "1 to %d with %d tokens", limit, cfg.Tokens)
		}
	}
	width("Window", cfg.Window, 1)
	c.layout("WindowCache.Layout", cfg.WindowCache.Layout)
	switch cfg.Ratio {
	case RatioC4A:
		width("TopK", cfg.TopK, 1)
		c.layout("CompressedCache.Layout", cfg.CompressedCache.Layout)
	case RatioC128A:
		width("MaxLen", cfg.MaxLen, RatioC128A)
		c.layout("CompressedCache.Layout", cfg.CompressedCache.Layout)
	}
	return c.err
}

// usable begins the check of a call's arguments.
func (d *Decode) usable(op string, rec *vk.Recorder) *checker {
	c := &checker{op: op}
	switch {
	case d == nil || d.arena == nil:
		c.err = fmt.Errorf("%s: decode %w", op, vk.ErrClosed)
	case rec == nil:
		c.bad("rec", "nil", "a recorder")
	default:
		c.dev = d.dev
	}
	return c
}

func (d *Decode) checkStep(c *checker, a StepArgs) {
	if c.err != nil {
		return
	}
	t := d.cfg.Tokens
	c.bound("SeqLens", a.SeqLens, tensor.I32, -1)
	if c.err != nil {
		return
	}
	r := a.SeqLens.Shape[0]
	c.bound("QueryStart", a.QueryStart, tensor.I32, r+1)
	c.bound("TokenToReq", a.TokenToReq, tensor.I32, t)
	c.bound("IsValid", a.IsValid, tensor.U8, t)
	c.bound("WindowTable", a.WindowTable, tensor.I32, r, -1)
	if d.cfg.Ratio == RatioC128A {
		c.bound("Positions", a.Positions, tensor.I32, t)
	}
	if d.cfg.Ratio != RatioWindow {
		c.bound("CompressedTable", a.CompressedTable, tensor.I32, r, -1)
	}
}

func (d *Decode) checkInsert(c *checker, a LayerArgs) {
	if c.err != nil {
		return
	}
	c.bound("KV", a.KV, tensor.BF16, d.cfg.Tokens, attention.D)
	c.cache("Window", a.Window, d.cfg.WindowCache, d.insert.Variant() == cache.VariantBase)
}

func (d *Decode) checkPicks(c *checker, s StepArgs, a LayerArgs) {
	if c.err != nil || d.cfg.Ratio != RatioC4A {
		return
	}
	c.bound("TopK", a.TopK, tensor.I32, d.cfg.Tokens, d.cfg.TopK)
	c.bound("TokenToReq", s.TokenToReq, tensor.I32, d.cfg.Tokens)
	c.bound("IsValid", s.IsValid, tensor.U8, d.cfg.Tokens)
	c.bound("CompressedTable", s.CompressedTable, tensor.I32, -1, -1)
}

func (d *Decode) checkAttend(c *checker, a LayerArgs) {
	if c.err != nil {
		return
	}
	t, h := d.cfg.Tokens, d.cfg.Heads
	c.bound("Q", a.Q, tensor.BF16, t, h, attention.D)
	c.optional("Sink", a.Sink, tensor.F32, h)
	c.cache("Window", a.Window, d.cfg.WindowCache, d.insert.Variant() == cache.VariantBase)
	if d.cfg.Ratio != RatioWindow {
		c.cache("Compressed", a.Compressed, d.cfg.CompressedCache, d.bindsCompressed())
	}
	c.bound("Out", a.Out, tensor.BF16, t, h, attention.D)
	c.optional("LSE", a.LSE, tensor.F32, t, h)
}

// bindsCompressed reports whether the attention reaches the compressed cache by a
// descriptor: the base build does, and of two passes the first where it can.
func (d *Decode) bindsCompressed() bool {
	v, two := strings.CutPrefix(d.variant, attention.TwoPassPrefix)
	return v == attention.VariantBase || two && v != attention.VariantDA && d.maxBytes <= d.dev.Caps().MaxStorageBufferRange
}
