// Command requantise copies a checkpoint with the linear layers of its attention
// turned into FP8 or NVFP4; package quantise has the arithmetic and the bounds.
//
//	go run ./internal/lab/quantise/requantise -from DIR -to DIR -format fp8|fp8-f32|nvfp4
//
// The layers are those that released checkpoints quantise: wq_a, wkv, wq_b, wo_a, wo_b
// and the indexer's wq_b, in files of BF16, F16 or F32. Everything else is copied as
// it is. fp8 writes power-of-two scales as .scale (F8_E8M0), fp8-f32 others as
// .weight_scale_inv (F32), nvfp4 .weight_scale and .weight_scale_2, the latter the
// same for wq_a and wkv of a layer, so that they can be stacked. The result is one
// file, written after everything was read once.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/lab/quantise"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
)

func main() {
	from := flag.String("from", "", "folder of the checkpoint")
	to := flag.String("to", "", "folder to write, made if it is not there")
	format := flag.String("format", "fp8", "fp8, fp8-f32 or nvfp4")
	flag.Parse()
	if err := requantise(*from, *to, *format); err != nil {
		fmt.Fprintln(os.Stderr, "requantise:", err)
		os.Exit(1)
	}
}

// described is what config.json says of each format.
var described = map[string]map[string]any{
	"fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
		"weight_block_size": []int{128, 128}, "scale_fmt": "ue8m0"},
	"fp8-f32": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{128, 128}},
	"nvfp4":   {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
}

func requantise(from, to, format string) (err error) {
	if described[format] == nil {
		return fmt.Errorf("-format is %q, want fp8, fp8-f32 or nvfp4", format)
	}
	m, err := safetensors.OpenModel(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	config, err := configOf(filepath.Join(from, "config.json"), format)
	if err != nil {
		return err
	}
	var list []safetensors.Source
	for _, name := range m.Names() {
		t, err := m.Tensor(name)
		if err != nil {
			return err
		}
		if stem, ok := linear(name); ok {
			s, err := quantised(m, t, stem, format)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			list = append(list, s...)
		} else {
			list = append(list, safetensors.Bytes(name, t.DType, t.Data, t.Shape...))
		}
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, "config.json"), config, 0o666); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(to, safetensors.SingleName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = safetensors.Guard(func() error { return safetensors.Write(w, map[string]string{"format": "pt"}, list) })
	return errors.Join(err, w.Flush(), f.Close())
}

const maxConfig = 16 << 20

// configOf adds quantization_config to a config.json.
func configOf(path, format string) ([]byte, error) {
	data, err := files.Read(path, maxConfig)
	if err != nil {
		return nil, err
	}
	var c map[string]any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c["quantization_config"] != nil {
		return nil, fmt.Errorf("%s: the checkpoint is quantised already", path)
	}
	c["quantization_config"] = described[format]
	out, err := json.MarshalIndent(c, "", "  ")
	return append(out, '\n'), err
}

var linears = regexp.MustCompile(`^((?:.*\.)?(?:self_)?attn\.` +
	`(?:wq_a|wkv|wq_b|wo_a|wo_b|indexer\.wq_b|q_a_proj|kv_proj|q_b_proj|o_a_proj|o_b_proj|compressor\.indexer\.q_b_proj))\.weight$`)

// linear tells whether a tensor is quantised, and its name without ".weight".
func linear(name string) (stem string, ok bool) {
	if m := linears.FindStringSubmatch(name); m != nil {
		return m[1], true
	}
	return "", false
}

// partners are stacked, so that they need one factor.
var partners = map[string]string{"wq_a": "wkv", "wkv": "wq_a", "q_a_proj": "kv_proj", "kv_proj": "q_a_proj"}

func partner(stem string) string {
	i := strings.LastIndex(stem, ".") + 1
	if p := partners[stem[i:]]; p != "" {
		return stem[:i] + p + ".weight"
	}
	return ""
}

func quantised(m *safetensors.Model, t safetensors.Tensor, stem, format string) ([]safetensors.Source, error) {
	w, err := values(t)
	if err != nil {
		return nil, err
	}
	if len(t.Shape) != 2 {
		return nil, fmt.Errorf("is %v, want two dimensions", t)
	}
	n, k := t.Shape[0], t.Shape[1]
	if format == "nvfp4" {
		amax := quantise.AMax(w)
		if p := partner(stem); p != "" && m.Has(p) {
			other, err := m.Tensor(p)
			if err != nil {
				return nil, err
			}
			v, err := values(other)
			if err != nil {
				return nil, err
			}
			amax = max(amax, quantise.AMax(v))
		}
		data, scales, global, err := quantise.NVFP4(w, n, k, amax)
		return []safetensors.Source{
			safetensors.Bytes(stem+".weight", safetensors.U8, data, n, k/2),
			safetensors.Bytes(stem+".weight_scale", safetensors.F8E4M3, scales, n, k/quantise.Run),
			safetensors.Bytes(stem+".weight_scale_2", safetensors.F32, floats(global)),
		}, err
	}
	data, scales, err := quantise.FP8(w, n, k, format == "fp8")
	blocks := []int{(n + quantise.Side - 1) / quantise.Side, (k + quantise.Side - 1) / quantise.Side}
	s := safetensors.Bytes(stem+".weight_scale_inv", safetensors.F32, floats(scales...), blocks...)
	if format == "fp8" {
		exps := make([]byte, len(scales))
		for i, x := range scales {
			exps[i] = byte(math.Float32bits(x) >> 23)
		}
		s = safetensors.Bytes(stem+".scale", safetensors.F8E8M0, exps, blocks...)
	}
	return []safetensors.Source{safetensors.Bytes(stem+".weight", safetensors.F8E4M3, data, n, k), s}, err
}

func floats(v ...float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// values decodes a tensor of floats.
func values(t safetensors.Tensor) ([]float32, error) {
	le := binary.LittleEndian
	var v []float32
	err := safetensors.Guard(func() error {
		for i := 0; i < len(t.Data); i += t.DType.Bits() / 8 {
			switch t.DType {
			case safetensors.BF16:
				v = append(v, numfmt.BF16Decode(le.Uint16(t.Data[i:])))
			case safetensors.F16:
				v = append(v, numfmt.F16Decode(le.Uint16(t.Data[i:])))
			case safetensors.F32:
				v = append(v, math.Float32frombits(le.Uint32(t.Data[i:])))
			default:
				return fmt.Errorf("is %v, want BF16, F16 or F32", t)
			}
		}
		return nil
	})
	return v, err
}
