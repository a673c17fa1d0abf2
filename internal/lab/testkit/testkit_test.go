package testkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/shaders"
)

func TestMain(m *testing.M) { Main(m) }

// TestMessages shows that a message of the validation layer is not lost.
func TestMessages(t *testing.T) {
	shared.mu.Lock()
	shared.messages = append(shared.messages, "a message")
	shared.mu.Unlock()
	m := drain()
	assert.Len(t, m, 1, "messages")
	assert.Empty(t, drain(), "messages")
}

func TestFolders(t *testing.T) {
	assert.FileExists(t, filepath.Join(Root(t), "go.mod"))
	own := filepath.Join(Root(t), "testdata", "golden")
	t.Setenv("VKMLA_TEST_GOLDEN", "")
	assert.Empty(t, FurtherGolden(t))
	assert.Equal(t, []string{own}, Folders(t))
	more := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(more, "manifest.json"), nil, 0o600))
	t.Setenv("VKMLA_TEST_GOLDEN", more)
	assert.Equal(t, more, FurtherGolden(t))
	if !testing.Short() {
		assert.Equal(t, []string{own, more}, Folders(t))
	}
}

func TestSeed(t *testing.T) {
	t.Setenv("VKMLA_TEST_SEED", "77")
	assert.Equal(t, uint64(77), Seed(t), "seed")
}

func TestLeftOut(t *testing.T) {
	for want, names := range map[bool][]string{false: {"cm", "cmb", "twopass-cm"}, true: {"base", "da", "twopass-base", ""}} {
		for _, name := range names {
			t.Setenv("VKMLA_TEST_VARIANTS", "")
			assert.False(t, LeftOut(name), "%q is left out where all are wanted", name)
			t.Setenv("VKMLA_TEST_VARIANTS", "cm")
			assert.Equal(t, want, LeftOut(name), "%q is left out: %v", name, !want)
		}
	}
}

func TestSmall(t *testing.T) {
	for _, op := range verify.All() {
		names, all := small(op, 5), op.RandomCases(5)
		assert.NotEmpty(t, names, "%s: %d of %d cases in short tests", op.Name, len(names), len(all))
		assert.LessOrEqual(t, len(names), len(all), "%s: %d of %d cases in short tests", op.Name, len(names), len(all))
	}
}

// TestOpOnDevice runs the whole way once, on an operation that takes no time.
func TestOpOnDevice(t *testing.T) { TestOp(t, "get_compressed_slot_mapping") }

func TestComparePush(t *testing.T) {
	k, err := shaders.Get("kv_touch")
	require.NoError(t, err)
	for what, push := range map[string]any{
		"": struct{ Words uint32 }{}, "name": struct{ words2 uint32 }{}, "size": struct{ Words uint64 }{}, "missing": struct{}{},
		"place": struct{ _, Words uint32 }{}, "more": struct{ Words, More uint32 }{},
	} {
		assert.Equal(t, what == "", ComparePush(k.SPIRV, push) == nil, what)
	}
	assert.Error(t, ComparePush(nil, struct{}{}), "no module")
}
