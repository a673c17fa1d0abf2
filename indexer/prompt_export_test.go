package indexer

// Shared tells whether the kernel is idx_logits_prompt.
func Shared(o *Logits) bool { return o.shared }

// Share makes it that kernel, whether or not it is worth it; false where it cannot be.
func Share(o *Logits) bool {
	if !o.inLanes {
		return false
	}
	t, ok := promptTilingOf(o.dev.Caps(), o.tune, o.cfg, o.lanes)
	if ok {
		o.prompt, o.shared = t, true
		o.k = pkg.Later(o.dev, o.spec())
	}
	return ok
}
