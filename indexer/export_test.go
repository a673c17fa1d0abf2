package indexer

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// CandidateScratchBytes is the part of Select's scratch memory that candidate blocks take, at most.
var CandidateScratchBytes = candidateScratchBytes
