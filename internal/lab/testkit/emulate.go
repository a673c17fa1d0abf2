package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/machine"
	"github.com/vkmla/vkmla/internal/lab/rdna"
	"github.com/vkmla/vkmla/vk"
)

// EmulateEnv names a GPU to emulate.
const EmulateEnv = "VKMLA_TEST_EMULATE"

// emulate attaches the emulated GPU that the environment names. A process that was not started for
// it is started again.
func emulate() error {
	gpu := os.Getenv(EmulateEnv)
	if gpu == "" {
		return nil
	}
	if os.Getenv("AMDGPU_GPU_ID") == "" { // scripts/with-mesa sets it
		root, err := root()
		if err != nil {
			return err
		}
		return start(filepath.Join(root, "scripts/with-mesa"), append([]string{"with-mesa", "emulate", gpu}, os.Args...))
	}
	m, err := rdna.Attach(gpu)
	shared.gpu = m
	return err
}

// nameKernels has the emulated GPU name kernels by their code.
func nameKernels(gpu *rdna.Machine, dev *vk.Device) {
	gpu.Name = func(code []uint32) string {
		for _, k := range dev.Kernels() {
			list, _ := door.Listings(dev, k)
			for _, x := range list {
				if x.Name != "Assembly" {
					continue
				}
				if words := machine.Code(x.Text); len(words) >= len(code) && slices.Equal(words[:len(code)], code) {
					return fmt.Sprintf("%s%d", k.Name(), k.Constants())
				}
			}
		}
		return ""
	}
}

// Emulated returns the emulated GPU that tests run on, or nil.
func Emulated() *rdna.Machine { return shared.gpu }

// untested says which instructions an emulated GPU executed and no unit test does.
func untested() (list []string) {
	if shared.gpu == nil {
		return nil
	}
	for _, op := range shared.gpu.Untested() {
		list = append(list, op+" has no line in internal/lab/rdna/testdata/opcodes.txt")
	}
	return list
}

// root returns the folder of go.mod.
func root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
		dir = up
	}
	return "", err
}

// Root returns the root folder of the repository.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal("testkit:", err)
	}
	return dir
}
