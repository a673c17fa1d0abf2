// Package validation says with how much validation tests run, and which messages of the
// validation layer are about the layer itself.
package validation

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// Env is the variable that Choose reads the value of.
const Env = "VKMLA_TEST_VALIDATION"

// Choose reads core, sync or off. Without a value it is core where the layer is installed; a value
// that the machine cannot serve is an error.
func Choose(value string, installed bool) (vk.Validation, error) {
	v, ok := map[string]vk.Validation{
		"": vk.ValidationCore, "core": vk.ValidationCore, "sync": vk.ValidationSync, "off": vk.ValidationOff,
	}[value]
	switch {
	case !ok:
		return 0, fmt.Errorf("validation: %s is %q, want core, sync or off", Env, value)
	case installed || v == vk.ValidationOff:
		return v, nil
	case value == "":
		return vk.ValidationOff, nil
	}
	return 0, fmt.Errorf("validation: %s is %q and the validation layer is not installed", Env, value)
}

// Late reports whether a message says only that the layer's own threads were slow.
//
// The layer follows each submission in a thread of its own. A wait that has returned also waits for
// that thread, ten seconds at most. Where the machine is busy that is too short, and the layer
// reports, in its words, most likely a validation bug. Releases of 2022 call these messages
// UNASSIGNED-VkFence-state-timeout and the like, later ones INTERNAL-ERROR-VkFence-state-timeout.
func Late(m vk.Message) bool {
	for _, prefix := range []string{"UNASSIGNED-Vk", "INTERNAL-ERROR-Vk"} {
		if what, ok := strings.CutPrefix(m.ID, prefix); ok {
			switch what {
			case "Fence-state-timeout", "Semaphore-state-timeout", "Queue-state-timeout":
				return true
			}
		}
	}
	return false
}
