package model

// Matrices lists the matrices of a layer.
func (l *LayerWeights) Matrices() []*Matrix { return l.matrices() }

// Vectors lists the vectors of a layer.
func (l *LayerWeights) Vectors() []*Vector { return l.vectors() }

// Frequencies are those of a rotation's pairs.
func (r Rope) Frequencies() [ropePairs]float32 { return r.frequencies() }
