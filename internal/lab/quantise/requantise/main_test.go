package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/quantise"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
)

// What the tool writes opens as the format that was asked for, and is as close to the
// original as the format allows.
func TestRequantise(t *testing.T) {
	for _, naming := range []fakemodel.Naming{fakemodel.Released, fakemodel.Modules} {
		from := t.TempDir()
		m, err := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(4), Naming: naming})
		require.NoError(t, err)
		delete(m.Config, "quantization_config")
		require.NoError(t, m.Write(from, 2))
		a := open(t, from)
		for format, want := range map[string]projection.Format{
			"fp8": projection.FormatFP8, "fp8-f32": projection.FormatFP8F32, "nvfp4": projection.FormatNVFP4} {
			to := filepath.Join(t.TempDir(), "new")
			require.NoError(t, requantise(from, to, format))
			b := open(t, to)
			require.NotEmpty(t, b.Config.Quantization, "%+v", b.Config)
			assert.Equal(t, b.Config.Layers, a.Config.Layers, "%+v", b.Config)
			x, y := a.Layers[0], b.Layers[0]
			for i, w := range x.Matrices() {
				g := y.Matrices()[i]
				stored := want
				if g == &y.Compressor.KVGate || g == &y.Indexer.Weights || g == &y.Indexer.Compressor.KVGate {
					stored = projection.FormatBF16
				}
				require.Equal(t, stored, g.Format, "%s: %s", format, g.Name)
				assert.NoError(t, within(w, g), "%s: %s", format, g.Name)
			}
			assert.Error(t, requantise(from, to, format), "a checkpoint was overwritten")
			assert.Error(t, requantise(to, filepath.Join(to, "again"), format), "a quantised checkpoint was quantised")
		}
	}
	assert.Error(t, requantise(t.TempDir(), t.TempDir(), "fp8"), "an empty folder")
	assert.Error(t, requantise("", "", "int8"), "an unknown format")
}

// within holds every weight against the bound of its format.
func within(w, g *model.Matrix) error {
	rows := make([][]float32, w.N)
	amax := float32(0)
	for r := range rows {
		rows[r] = make([]float32, w.K)
		if err := w.Row(r, rows[r]); err != nil {
			return err
		}
		amax = max(amax, quantise.AMax(rows[r]))
	}
	got := make([]float32, w.K)
	for r := range rows {
		if err := g.Row(r, got); err != nil {
			return err
		}
		for c, x := range rows[r] {
			bound := 0.0
			switch g.Format {
			case projection.FormatFP8, projection.FormatFP8F32:
				bound = quantise.FP8Bound(x, amax) // of a block at most as large as the matrix
			case projection.FormatNVFP4:
				b := c / quantise.Run * quantise.Run
				bound = quantise.NVFP4Bound(x, quantise.AMax(rows[r][b:b+quantise.Run]), amax)
			}
			if d := math.Abs(float64(got[c]) - float64(x)); d > bound {
				return fmt.Errorf("[%d, %d]: %v became %v, further than %v", r, c, x, got[c], bound)
			}
		}
	}
	return nil
}

func open(t *testing.T, dir string) *model.Checkpoint {
	t.Helper()
	c, err := model.Open(dir, model.CheckpointOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConfigOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"big": 9007199254740993, "x": [1.0]}`), 0o666))
	data, err := configOf(path, "nvfp4")
	var c struct {
		Big   int64
		Quant map[string]any `json:"quantization_config"`
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	require.NoError(t, err, "%s", data)
	require.Equal(t, int64(9007199254740993), c.Big, "%s", data)
	assert.Equal(t, "NVFP4", c.Quant["quant_algo"], "%s", data)
}
