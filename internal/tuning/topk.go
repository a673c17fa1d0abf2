package tuning

// TopK is what the selection of package indexer was fitted to.
type TopK struct{}
