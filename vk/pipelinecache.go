package vk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	vulkan "github.com/goki/vulkan"

	"github.com/vkmla/vkmla/internal/files"
)

// pipelineCache is the driver's cache of compiled pipelines, kept in a file. The
// file begins with the SHA-256 of the rest: some drivers trust a cache whose
// header looks right, so a damaged file must not reach them.
type pipelineCache struct {
	h    vulkan.PipelineCache
	path string

	mu    sync.Mutex
	have  [sha256.Size]byte // of the data in the file
	fresh atomic.Bool       // something was compiled that took long
}

// worthKeeping is more than the driver takes for a kernel that it finds in its cache.
var worthKeeping = 30 * time.Millisecond

// maxPipelineCache bounds the file that is read; drivers' caches of all kernels have some MiB.
const maxPipelineCache = 256 << 20

func (p *pipelineCache) open(d *Device) {
	var data []byte
	if dir := d.opts.PipelineCacheDir; dir != "" {
		c := d.Caps()
		id := sha256.Sum256(fmt.Append(nil, c.VendorID, c.DeviceID, d.adapter.DriverVersion, c.pipelineCacheUUID))
		p.path = filepath.Join(dir, "pipelines-"+hex.EncodeToString(id[:8]))
		if file, err := files.Read(p.path, maxPipelineCache); err == nil && len(file) > sha256.Size {
			if sum := sha256.Sum256(file[sha256.Size:]); bytes.Equal(sum[:], file[:sha256.Size]) {
				data, p.have = file[sha256.Size:], sum
			}
		}
	}
	ci := vulkan.PipelineCacheCreateInfo{SType: vulkan.StructureTypePipelineCacheCreateInfo}
	var pins runtime.Pinner // the binding copies the address into C's memory
	defer pins.Unpin()
	if len(data) > 0 {
		pins.Pin(&data[0])
		setSize(&ci.InitialDataSize, len(data))
		ci.PInitialData = unsafe.Pointer(&data[0])
	}
	var h vulkan.PipelineCache
	if vulkan.CreatePipelineCache(d.h, &ci, nil, &h) == vulkan.Success { // else kernels are compiled without a cache
		p.h = h
	}
	ci.Free()
}

// close saves the cache and ends it.
func (p *pipelineCache) close(d *Device) {
	if p.h != nil {
		p.save(d)
		vulkan.DestroyPipelineCache(d.h, p.h, nil)
	}
}

// saveFresh saves what took long to compile, so that it is there even if the program is killed.
func (p *pipelineCache) saveFresh(d *Device) {
	if p.h != nil && p.fresh.Swap(false) {
		p.save(d)
	}
}

func (p *pipelineCache) save(d *Device) {
	if p.path == "" || d.lost.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	data := cacheData(vulkan.GetPipelineCacheData, d.h, p.h)
	sum := sha256.Sum256(data)
	if len(data) == 0 || sum == p.have {
		return
	}
	if os.MkdirAll(filepath.Dir(p.path), 0o755) != nil {
		return
	}
	err := files.Replace(p.path, 0o600, func(w io.Writer) error {
		_, err := w.Write(append(sum[:], data...))
		return err
	})
	if err == nil {
		p.have = sum
	}
}
