package attention_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestGlobalTopK(t *testing.T)     { testkit.TestOp(t, "compute_global_topk_indices_and_lens") }
func TestWindowIndices(t *testing.T)  { testkit.TestOp(t, "decode_window_indices") }
func TestC128Indices(t *testing.T)    { testkit.TestOp(t, "c128a_indices") }
func TestCombineIndices(t *testing.T) { testkit.TestOp(t, "combine_topk_swa_indices") }
func TestDecode(t *testing.T)         { testkit.TestOp(t, "flashmla_sparse_decode") }
func TestPrefill(t *testing.T)        { testkit.TestOp(t, "flashmla_sparse_prefill") }
func TestTwoPass(t *testing.T)        { testkit.TestOp(t, "xpu_sparse_decode") }
