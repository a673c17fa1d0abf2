package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/vk"
)

// The page strides of the model's caches.
func TestPageStrides(t *testing.T) {
	for _, x := range []struct {
		c            cache.Compression
		page, stride int
	}{{cache.C4Main, 4, 32832}, {cache.C4Index, 4, 8640}, {cache.C128Main, 8, 32832}} {
		l := must[cache.StateLayout](t)(cache.NewStateLayout(x.c, x.page, 0))
		assert.Equal(t, x.stride, l.Stride, "%+v: stride", x.c)
		off := l.SlotOffset(int64(x.page) + 1)
		assert.Equal(t, int64(x.stride+l.SlotBytes()), off, "%+v: the second slot of the second page is at", x.c)
	}
	for _, f := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
		l := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(f, 64, 0))
		row := int64(f.RowBytes())
		require.Equal(t, 8640, l.Stride, "%v", f)
		require.Equal(t, 8640+row, l.RowOffset(65), "%v", f)
		assert.Equal(t, 8640+64*row+4, l.ScaleOffset(65), "%v", f)
	}
	assert.Equal(t, 8, cache.C4Main.Window(), "windows are not 8, 8 and 128 tokens")
	assert.Equal(t, 8, cache.C4Index.Window(), "windows are not 8, 8 and 128 tokens")
	assert.Equal(t, 128, cache.C128Main.Window(), "windows are not 8, 8 and 128 tokens")
}

func TestPageArguments(t *testing.T) {
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"state kind":   one(cache.NewStateLayout(cache.Compression{}, 4, 0)),
		"state page":   one(cache.NewStateLayout(cache.C4Main, 0, 0)),
		"state stride": one(cache.NewStateLayout(cache.C4Main, 4, 32768-16)),
		"state align":  one(cache.NewStateLayout(cache.C4Main, 4, 32768+8)),
		"state huge":   one(cache.NewStateLayout(cache.C4Main, 1<<30, 0)),
		"key format":   one(cache.NewIndexKeyLayout(0, 64, 0)),
		"key page":     one(cache.NewIndexKeyLayout(cache.IndexKeyFP8, -4, 0)),
		"key stride":   one(cache.NewIndexKeyLayout(cache.IndexKeyFP8, 64, 8432)),
		"key align":    one(cache.NewIndexKeyLayout(cache.IndexKeyFP8, 64, 8456)),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}
