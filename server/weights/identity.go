package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// identityBytes is how much Identity reads of each tensor, from its middle.
const identityBytes = 4096

// Identity tells the weights that are read here from others, by a hash of the configuration and of
// each tensor's name, type, shape and some bytes. Released ones differ everywhere.
func (m *Model) Identity() (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(m.Config); err != nil {
		return "", err
	}
	err := m.tensors.Read(func() error {
		for _, name := range slices.Sorted(maps.Keys(m.released)) {
			t, err := m.tensors.Tensor(m.released[name])
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%q %s %v\n", name, t.DType, t.Shape)
			n := min(identityBytes, len(t.Data))
			h.Write(t.Data[(len(t.Data)-n)/2:][:n])
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
