package model

import "github.com/vkmla/vkmla/cache"

// CacheBytes returns the most bytes that the caches of a session of `tokens` tokens take on the
// device in all layers, in whole pages, between steps: a page of each window and of each
// compressor's states less at some lengths. It is for engines with default pages, Config.Records,
// index keys of FP8 where these leave the choice, and without Rewind; EngineOptions.Estimate of
// package pipeline is for any. It is 0 for no tokens, and for a configuration that Check refuses.
func (c Config) CacheBytes(tokens int) (sum uint64) {
	if tokens < 1 || c.Check() != nil {
		return 0
	}
	for i := range c.Layers {
		l := &c.Layers[i].LayerSpec
		for _, p := range l.Pools {
			for _, s := range p.Stores {
				sum += uint64(p.Held(tokens, c.Window, 0)) * uint64(c.pageBytes(l, s, p.Page))
			}
		}
	}
	return sum
}

// Held returns the most pages of the pool that a session of `tokens` tokens holds between steps: a
// page that nothing reads any more goes when the next one does. window is that of the Config, and
// rewind the most tokens that the session may be truncated by.
func (p *PoolSpec) Held(tokens, window, rewind int) int {
	all, keep := ceilDiv(tokens/p.Tokens, p.Page), p.Kept(window)
	if keep == KeepAll {
		return all
	}
	return all - max(0, max(0, tokens-rewind-keep)/p.Page-1)
}

// pageBytes is the size of a page of a layer's cache.
func (c *Config) pageBytes(l *LayerSpec, s Store, page int) int {
	switch s {
	case StoreState, StoreKeyState:
		dim := cache.D
		if s == StoreKeyState {
			dim = cache.IndexDim
		}
		layout, _ := cache.NewStateLayout(l.Compression(dim), page, 0) // Check has looked at both
		return layout.Stride
	case StoreKeys:
		layout, _ := cache.NewIndexKeyLayout(c.Records.Keys(), page, c.Records.KeyStride(c.Records.Keys(), page))
		return layout.Stride
	}
	return c.Records.Record(s).DefaultStride(page)
}
