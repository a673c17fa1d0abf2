package prefix

import "time"

// Rests is until when the keeper leaves its store alone.
func (k *Keeper) Rests() time.Time { return time.Unix(0, k.resting.Load()) }

// Rest lets the keeper leave its store alone until then.
func (k *Keeper) Rest(until time.Time) { k.resting.Store(until.UnixNano()) }

// Waiting counts the calls of Open that want each object that is being loaded.
func (k *Keeper) Waiting() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	var users []int
	for _, x := range k.loads {
		users = append(users, x.users)
	}
	return users
}
