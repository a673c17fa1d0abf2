//go:build !windows

package vk_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// sharedVar tells a second process of this test what it has been given.
const sharedVar = "VKMLA_TEST_SHARED"

// Another process adds to a buffer of this one, by a kernel.
func TestSharedProcess(t *testing.T) {
	const size, words32 = 4 << 10, 1 << 10
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	offers(t, d, "exportMemory", "importMemory")
	if given := os.Getenv(sharedVar); given != "" {
		var x share.Exported
		require.NoError(t, json.Unmarshal([]byte(given), &x))
		x.Handle = 3 // the first of exec.Cmd.ExtraFiles
		b, err := share.Import(d, "given", vk.DeviceLocal, x)
		require.NoError(t, err)
		own := buffer(t, d, size, vk.DeviceLocal)
		require.NoError(t, record(t, d, func(r *vk.Recorder) error {
			if err := r.Dispatch(addStep(copyKernel(t, d), own.Whole(), b.Whole(), 30)); err != nil {
				return err
			}
			return r.Copy(b.Whole(), own.Whole())
		}).Run(ctx))
		require.NoError(t, b.Close())
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	if strings.HasPrefix(filepath.Base(self), "ld-linux") {
		t.Skip("started with libraries that a second process has not, as by scripts/newer-mesa")
	}
	b, err := d.NewBuffer(vk.BufferSpec{Label: "own", Size: size, Export: true})
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, d.Upload(ctx, b.Whole(), words(words32, func(i int) uint32 { return uint32(i) })))
	x := export(t, b)
	file := os.NewFile(uintptr(x.Handle), "memory")
	defer file.Close()
	given, err := json.Marshal(x)
	require.NoError(t, err)
	child := exec.Command(self, "-test.run=^TestSharedProcess$", "-test.v")
	child.Env = append(os.Environ(), sharedVar+"="+string(given))
	child.ExtraFiles = []*os.File{file}
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	got := make([]byte, size)
	require.NoError(t, d.Download(ctx, got, b.Whole()))
	assert.Equal(t, words(words32, func(i int) uint32 { return uint32(i) + 30 }), got, "%s", out)
}
