package attention

// valuesOf makes the values that a reference sums from the rows that are keys.
type valuesOf func(rows [][]float32) [][]float32

func asIs(rows [][]float32) [][]float32 { return rows }

func magnitudes(rows [][]float32) [][]float32 {
	abs := make([][]float32, len(rows))
	for j, row := range rows {
		abs[j] = make([]float32, len(row))
		for d, x := range row {
			abs[j][d] = max(x, -x)
		}
	}
	return abs
}

// DecodeSpreadRef is DecodeRef with the magnitudes of the rows in the place of the
// values: spread = sum_j exp(s_j) |k_j| / (sum_j exp(s_j) + exp(sink)), [T, H, 512].
//
// It says how far an output can move when its weights are rounded: by u * spread
// for a unit roundoff u, 2^-8 for weights in bf16. Where values of both signs
// cancel that is far more than u times the output, so no bound relative to the
// output holds for a kernel with rounded weights.
func DecodeSpreadRef(q []uint16, heads int, window, compressed *Slots, sink []float32, scale float32) ([]float32, error) {
	spread, _, err := decodeRef(q, heads, window, compressed, sink, scale, magnitudes)
	return spread, err
}

// PrefillSpreadRef is to PrefillRef what DecodeSpreadRef is to DecodeRef.
func PrefillSpreadRef(q []uint16, heads int, kv []uint16, indices []int32, width int, lens []int32,
	sink []float32, scale float32) []float32 {
	spread, _, _ := prefillRef(q, heads, kv, indices, width, lens, sink, scale, magnitudes)
	return spread
}

// TwoPassSpreadRef is to TwoPassRef what DecodeSpreadRef is to DecodeRef.
func TwoPassSpreadRef(q []uint16, heads int, window, compressed *Slots, sink []float32, scale float32, zeroMasked bool) ([]float32, error) {
	spread, _, err := twoPassRef(q, heads, window, compressed, sink, scale, zeroMasked, magnitudes)
	return spread, err
}
