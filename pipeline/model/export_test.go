package model

// ParseConfig reads a config.json without the layers that only predict ahead.
func ParseConfig(data []byte) (Config, error) { return parseConfig(data, nil) }

// Matrices lists the matrices of a layer.
func (l *LayerWeights) Matrices() []*Matrix { return l.matrices() }

// Vectors lists the vectors of a layer.
func (l *LayerWeights) Vectors() []*Vector { return l.vectors() }

// Frequencies are those of a rotation's pairs.
func (r Rope) Frequencies() [ropePairs]float32 { return r.frequencies() }

// Bytes returns the bytes of all tensors of the layers, without the padding they get on a device.
func (c *Checkpoint) Bytes() (n int64) {
	for i := range c.Layers {
		for _, m := range c.Layers[i].matrices() {
			n += m.Data.Size() + m.Scales.Size() + m.RowScales.Size()
		}
		for _, v := range c.Layers[i].vectors() {
			n += v.Data.Size()
		}
	}
	return n
}
