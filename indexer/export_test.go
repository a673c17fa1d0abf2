package indexer

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// CandidateScratchBytes is the part of Select's scratch memory that candidate blocks take, at most.
var CandidateScratchBytes = candidateScratchBytes

// K is the number of picks of a row.
func (o *TopK) K() int { return o.cfg.K }
