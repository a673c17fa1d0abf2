package recorded

import (
	_ "embed"
	"errors"
	"sync"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// Layer Chosen has Entries, fewer than its indexer may pick: in its recording top-k does not
// choose. With TopK it does.
const (
	Chosen  = 1
	Entries = Tokens / 4
	TopK    = 16
)

// Choice holds the results of layer Chosen for its recorded input with TopK. They come from the
// definition, package formula, not from transformers; the caches and the indexer's queries are
// rounded as in the recording.
type Choice struct {
	Out    []float32 // [Tokens, Hidden], rounded to float16
	Picks  []int32   // [Tokens, TopK], ascending, -1 where there are fewer
	Scores []float32 // [Tokens, Entries], rounded to float16; 0 where a token attends all
}

//go:embed choice.npz
var choice []byte

// Choose returns what is stored of layer Chosen. Callers must not change it.
var Choose = sync.OnceValues(func() (Choice, error) {
	npz, err := vectors.ReadArchive("choice.npz", choice)
	if err != nil {
		return Choice{}, err
	}
	out, err := npz.Array("out")
	picks, err2 := npz.Array("topk")
	scores, err3 := npz.Array("scores")
	if err := errors.Join(err, err2, err3); err != nil {
		return Choice{}, err
	}
	return Choice{narrow(out), picks.I32(), narrow(scores)}, nil
})
