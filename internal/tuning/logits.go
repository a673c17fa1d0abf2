package tuning

// Logits is what the scores of package indexer were fitted to.
type Logits struct{}
