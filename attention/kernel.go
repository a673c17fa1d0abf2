package attention

import "github.com/vkmla/vkmla/internal/opkit"

// MaxHeads is the largest number of query heads.
const MaxHeads = 128

// DefaultScale is the softmax scale of DeepSeek-V4, 512^-0.5.
const DefaultScale float32 = 0.044194173824159216

// pkg begins the errors of this package and makes its kernels.
const pkg = opkit.Package("attention")
