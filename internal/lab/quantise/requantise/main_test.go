package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/quantise"
	"github.com/vkmla/vkmla/pipeline/model"
)

// What the tool writes opens as the format that was asked for, and is as close to the
// original as the format allows.
func TestRequantise(t *testing.T) {
	for _, naming := range []fakemodel.Naming{fakemodel.Released, fakemodel.Modules} {
		from := t.TempDir()
		m, err := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(4), Naming: naming})
		if err != nil {
			t.Fatal(err)
		}
		delete(m.Config, "quantization_config")
		if err := m.Write(from, 2); err != nil {
			t.Fatal(err)
		}
		a := open(t, from)
		for format, want := range map[string]model.Format{"fp8": model.FormatFP8, "fp8-f32": model.FormatFP8, "nvfp4": model.FormatNVFP4} {
			to := filepath.Join(t.TempDir(), "new")
			if err := requantise(from, to, format); err != nil {
				t.Fatal(err)
			}
			b := open(t, to)
			if b.Config.Quantization == "" || !reflect.DeepEqual(a.Config.Layers, b.Config.Layers) {
				t.Errorf("%+v", b.Config)
			}
			x, y := a.Layers[0], b.Layers[0]
			for i, w := range x.Matrices() {
				g := y.Matrices()[i]
				stored := want
				if g == &y.Compressor.KVGate || g == &y.Indexer.Weights || g == &y.Indexer.Compressor.KVGate {
					stored = model.FormatBF16
				}
				if g.Format != stored || g.ScaleF32 != (stored == model.FormatFP8 && format == "fp8-f32") {
					t.Errorf("%s: %s is %v", format, g.Name, g.Format)
				}
				if err := within(w, g); err != nil {
					t.Errorf("%s: %s: %v", format, g.Name, err)
				}
			}
			if err := requantise(from, to, format); err == nil {
				t.Error("a checkpoint was overwritten")
			}
			if err := requantise(to, filepath.Join(to, "again"), format); err == nil {
				t.Error("a quantised checkpoint was quantised")
			}
		}
	}
	if err := requantise(t.TempDir(), t.TempDir(), "fp8"); err == nil {
		t.Error("an empty folder")
	}
	if err := requantise("", "", "int8"); err == nil {
		t.Error("an unknown format")
	}
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
			case model.FormatFP8:
				bound = quantise.FP8Bound(x, amax) // of a block at most as large as the matrix
			case model.FormatNVFP4:
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConfigOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"big": 9007199254740993, "x": [1.0]}`), 0o666); err != nil {
		t.Fatal(err)
	}
	data, err := configOf(path, "nvfp4")
	var c struct {
		Big   int64
		Quant map[string]any `json:"quantization_config"`
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil || c.Big != 9007199254740993 || c.Quant["quant_algo"] != "NVFP4" {
		t.Errorf("%s, %v", data, err)
	}
}
