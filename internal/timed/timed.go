// Package timed keeps in a file which builds of kernels a device runs fastest, as
// pipeline/internal/measure found it.
package timed

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Builds records what was timed on a device.
type Builds struct {
	Version int                     `json:"version"` // Version
	Device  string                  `json:"device"`  // and its driver, see Device
	Kernels string                  `json:"kernels"` // a hash of the builds that were timed
	Date    string                  `json:"date"`
	Timed   map[string]tuning.Timed `json:"timed"` // by family
}

// Version is that of the form of Builds. Others are not read.
const Version = 2

// Device names a device with the driver and the version that times hold for.
func Device(a *vk.Adapter) string {
	return fmt.Sprintf("%s, %s, %s %s %#x", a.Name, a.UUID, a.DriverName, a.DriverInfo, a.DriverVersion)
}

// Path is the file of a device in a folder.
func Path(dir string, a *vk.Adapter) string {
	h := sha256.Sum256([]byte(Device(a)))
	return filepath.Join(dir, "builds-"+hex.EncodeToString(h[:8])+".json")
}

// Load reads what was kept of a device; false if there is nothing that can be read.
func Load(dir string, a *vk.Adapter) (b Builds, ok bool) {
	data, err := os.ReadFile(Path(dir, a))
	ok = err == nil && json.Unmarshal(data, &b) == nil && b.Version == Version && b.Device == Device(a)
	if !ok {
		b = Builds{}
	}
	return b, ok
}
