package tuning

// Layer holds the numbers for the order of a layer's operations. Its numbers choose rows of the
// tables in pipeline/internal/layer/schedule.go, and which launches do the work of two.
//
// T is the number of tokens of a step, padding included. Measurements are of whole steps of
// DeepSeek-V4-Flash on an H100.
type Layer struct {
	// NormTokens is the most tokens of a step without a level of norms: the product that makes
	// the query's bottleneck norms it, and the kernel that makes compressed entries stores the
	// states first. It saves a barrier and costs a wait inside two launches. Steps of 1, 8 and
	// 16 tokens gain 2 %, one of 32 gains 0.2 %.
	//
	// In these steps, too, the kernel of the scores quantises the indexer's queries, where it can.
	// It saves a level, and each workgroup quantises again. A step of one token gains 3.6 %, those
	// of 2, 8 and 32 gain 1.3 to 1.7 %.
	NormTokens int

	// BesideTokens is the fewest tokens of a step with wq_b beside the indexer's scores. Scores of
	// many tokens wait for memory while the product does not; those of few want the same issue
	// slots as the product. The step of 32 tokens gains 4 %, that of 8 is the same, that of one
	// would lose 2 %. From here on, too, the products that take longest come first where the first
	// one has no norm inside, which gains 0.4 %.
	BesideTokens int

	// ChainTokens is the most tokens of a step with wo_a and wo_b in one launch. With 2 tokens
	// two launches take less time.
	ChainTokens int

	// JoinTokens is the most tokens of a step in which that launch also joins the attention's
	// parts. It saves a level; projection.LinearChainTokens bounds it.
	JoinTokens int

	// TouchLeast and TouchMost are bytes of a pool of entries whose addresses are translated
	// beside the end of the selection. A step of 32 tokens with pools of 612 MiB in 21 layers
	// takes 2 % less; one of a token with pools of 20 MiB takes 0.5 % more. A larger pool than
	// TouchMost takes too long to touch.
	TouchLeast, TouchMost uint64
}
