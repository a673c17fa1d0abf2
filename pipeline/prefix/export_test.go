package prefix

// Waiting is how many calls of Open want each object that is being loaded.
func (k *Keeper) Waiting() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	var users []int
	for _, x := range k.loads {
		users = append(users, x.users)
	}
	return users
}
