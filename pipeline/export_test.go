package pipeline

import "github.com/vkmla/vkmla/vk"

// Lose makes an engine believe that its device was lost.
func (e *Engine) Lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(vk.ErrDeviceLost)
}

// Pages returns how many pages the engine has of each sort, and how many are free.
func (e *Engine) Pages() (all, free [poolCount]int) {
	for i, p := range e.pools {
		if p != nil {
			all[i], free[i] = p.ids.Capacity(), p.ids.Free()
		}
	}
	return all, free
}
