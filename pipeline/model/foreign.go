package model

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/safetensors"
)

// foreignStorage is a way to store a linear layer that is known and not read: by a tensor of it and
// what goes with that. Names are those after the layer's.
type foreignStorage struct {
	what   string
	tensor string              // that is there
	types  []safetensors.DType // one of which it has; nil: any
	cols   int                 // inputs for each of its columns; 0: any number
	beside string              // another tensor that is there; "": none
	scales int                 // inputs for each column of its scales; 0: any number
}

// foreignStorages are tried in this order.
var foreignStorages = []foreignStorage{
	{what: "GPTQ", tensor: ".qweight", beside: ".g_idx"},
	{what: "AWQ or GPTQ", tensor: ".qweight"},
	{what: "EXL3", tensor: ".trellis"},
	{what: "EXL2", tensor: ".q_weight"},
	{what: "MLX's quantisation", tensor: ".weight", types: []safetensors.DType{"U32"}, beside: ".scales"},
	{what: "bitsandbytes' quantisation", tensor: ".weight", beside: ".weight.absmax"},
	{what: "bitsandbytes' INT8", tensor: ".weight", beside: ".SCB"},
	{what: "packed integers of compressed-tensors", tensor: ".weight_packed", types: []safetensors.DType{safetensors.I32}},
	{what: "INT8 (W8A8)", tensor: ".weight", types: []safetensors.DType{safetensors.I8}, cols: 1},
	{what: "codes of 8 bits without a type", tensor: ".weight", types: []safetensors.DType{safetensors.U8}, cols: 1},
	{what: "MXFP4", tensor: ".weight", types: []safetensors.DType{safetensors.U8, safetensors.I8}, cols: 2, scales: 32},
	{what: "MXFP4", tensor: ".weight_packed", types: []safetensors.DType{safetensors.U8, safetensors.I8}, cols: 2, scales: 32},
	{what: "MXFP4", tensor: ".weight", types: []safetensors.DType{safetensors.F4}, scales: 32},
	{what: "MXFP8", tensor: ".weight", types: []safetensors.DType{safetensors.F8E4M3}, scales: 32},
	{what: "FP8 with scales for 1 by 128", tensor: ".weight", types: []safetensors.DType{safetensors.F8E4M3}, scales: 128},
	{what: "FP8 of E5M2", tensor: ".weight", types: []safetensors.DType{"F8_E5M2"}},
	{what: "FP8 of another bias", tensor: ".weight", types: []safetensors.DType{"F8_E4M3FNUZ", "F8_E5M2FNUZ"}},
}

// scaleNames lists the names of a linear layer's scales.
var scaleNames = []string{".scale", ".weight_scale_inv", ".weight_scale"}

// foreign refuses a linear layer of k inputs that is stored in one of foreignStorages.
func (l *layerReader) foreign(stem string, n, k int) {
	for _, f := range foreignStorages {
		if l.err != nil {
			return
		}
		stored, there := l.names[stem+f.tensor]
		if !there || f.beside != "" && !l.has(stem+f.beside) {
			continue
		}
		t, err := l.model.Tensor(stored)
		if err != nil {
			l.err = &CheckpointError{File: l.model.File(stored), Tensor: stored, err: err}
			return
		}
		if f.types != nil && !slices.Contains(f.types, t.DType) || f.cols > 0 && !slices.Equal(t.Shape, []int{n, k / f.cols}) ||
			f.scales > 0 && (n == 1 || k <= f.scales || !l.scaled(stem, n, ceilDiv(k, f.scales))) {
			continue
		}
		l.err = &ForeignError{l.model.File(stored), stored, f.what}
	}
}

// scaled reports whether a linear layer has scales of that shape.
func (l *layerReader) scaled(stem string, rows, cols int) bool {
	for _, s := range scaleNames {
		if stored, there := l.names[stem+s]; there {
			t, err := l.model.Tensor(stored)
			return err == nil && slices.Equal(t.Shape, []int{rows, cols})
		}
	}
	return false
}

// foreignFiles are files that show what a folder holds where it has no checkpoint to read.
var foreignFiles = []struct {
	name *regexp.Regexp
	what string
}{
	{regexp.MustCompile(`^model\d+-mp\d+\.safetensors$`), "a checkpoint converted for DeepSeek's own inference code"},
	{regexp.MustCompile(`^weights(\.\d+)?\.npz$`), "an archive of MLX's"},
	{regexp.MustCompile(`^(pytorch_model.*\.bin|.*\.pth|.*\.pt)$`), "a checkpoint of PyTorch's own format"},
}

// maxPointer is more bytes than a pointer of Git LFS has.
const maxPointer = 1 << 10

// maxEntries is the most files of a folder that are looked at.
const maxEntries = 4096

// foreignFolder explains an error about a folder that lacks files, or about a file in its place.
func foreignFolder(dir string, err error) error {
	if err == nil || errors.Is(err, ErrForeign) {
		return err
	}
	if st, e := os.Stat(dir); e == nil && st.Mode().IsRegular() {
		if data, _ := files.Read(dir, maxPointer); files.IsPointer(data) {
			return &ForeignError{filepath.Base(dir), "", files.PointerWhat}
		}
		return badArgument(opOpen, "dir", filepath.Base(dir), "the folder of a model, or a GGUF file")
	}
	if errors.Is(err, safetensors.ErrFormat) && beginsAsGGUF(filepath.Join(dir, safetensors.SingleName)) {
		return &ForeignError{safetensors.SingleName, "", "GGUF under another name"}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, e := os.Open(dir)
	if e != nil {
		return err
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxEntries)
	slices.Sort(names)
	for _, x := range foreignFiles {
		for _, name := range names {
			if x.name.MatchString(name) && strconv.Quote(name) == `"`+name+`"` {
				return &ForeignError{name, "", x.what}
			}
		}
	}
	return err
}

// beginsAsGGUF reports whether a file begins as GGUF does.
func beginsAsGGUF(path string) bool { file, _ := gguf.Find(path); return file != "" }
