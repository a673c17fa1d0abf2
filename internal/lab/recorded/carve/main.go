// Command carve cuts the recording of package recorded out of a folder of transformers' run: the
// outputs that layers.npz there calls fp8kv, of layers 0 to 2.
//
//	go run ./internal/lab/recorded/carve -from FOLDER -to internal/lab/recorded/layers.npz
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
)

func main() {
	log.SetFlags(0)
	from := flag.String("from", "", "the folder with layers.npz")
	to := flag.String("to", "", "the file to write")
	flag.Parse()
	if err := carve(*from, *to); err != nil {
		log.Fatal("carve: ", err)
	}
}

func carve(from, to string) error {
	src, err := vectors.OpenArchive(filepath.Join(from, "layers.npz"))
	if err != nil {
		return err
	}
	defer src.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	w := vectors.NewArchiveWriter(f)
	for i := range 3 {
		for _, what := range []string{"in", "out"} {
			a, err := src.Array(fmt.Sprintf("fp8kv.L%d.%s", i, what))
			if err != nil {
				return err
			}
			if err := w.Add(fmt.Sprintf("L%d.%s", i, what), rounded(what, a)); err != nil {
				return err
			}
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// rounded returns an array as package recorded keeps it: inputs in bf16, outputs in float16.
func rounded(what string, a vectors.Array) vectors.Array {
	if what == "in" {
		return vectors.FromBF16(a.F32(), a.Shape...)
	}
	var bits []uint16
	for _, v := range a.F32() {
		bits = append(bits, numfmt.F16Encode(v))
	}
	half := vectors.FromU16(bits, a.Shape...)
	half.Type = vectors.F16
	return half
}
