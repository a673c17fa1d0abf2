package projection

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// QKVNormRef is the definition of one of the two norms of QKVNorm on host memory, for
// rows x [T, n] bf16 and weights w [n], bf16 ones widened:
//
//	r = (sum_i x_i^2 / n + eps)^-0.5,  y_i = bf16((x_i * r) * w_i)
//
// r and the products rounded to binary32, the sum taken exactly; one beyond binary32
// makes r 0. It writes y [T, n] bf16. Its error is a *vk.ArgumentError, and then nothing
// was written.
func QKVNormRef(x []uint16, w []float32, eps float32, y []uint16) error {
	const op = "qkv norm reference"
	n := len(w)
	if n == 0 || len(x)%n != 0 || len(y) != len(x) {
		return pkg.Wrong(op, "x, w, y", fmt.Sprintf("%d, %d and %d values", len(x), n, len(y)),
			"whole rows of len(w) values in x, and as many in y")
	}
	eps, err := epsilon(op, eps)
	if err != nil {
		return err
	}
	for row := 0; row < len(x); row += n {
		r := rmsFactor(x[row:row+n], eps)
		for i, b := range x[row : row+n] {
			v := float32(numfmt.BF16Decode(b) * r)
			y[row+i] = numfmt.BF16Encode(float32(v * w[i]))
		}
	}
	return nil
}

// rmsFactor is (mean of x^2 + eps)^-0.5.
func rmsFactor(x []uint16, eps float32) float32 {
	sum := 0.0
	for _, b := range x {
		v := float64(numfmt.BF16Decode(b))
		sum += v * v
	}
	if float32(sum) > math.MaxFloat32 {
		return 0
	}
	return float32(1 / math.Sqrt(sum/float64(len(x))+float64(eps)))
}
