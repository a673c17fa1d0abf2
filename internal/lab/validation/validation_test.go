package validation

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/vk"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		value     string
		installed bool
		want      vk.Validation
	}{
		{"", true, vk.ValidationCore}, {"", false, vk.ValidationOff},
		{"core", true, vk.ValidationCore}, {"sync", true, vk.ValidationSync},
		{"off", true, vk.ValidationOff}, {"off", false, vk.ValidationOff},
	} {
		got, err := Choose(c.value, c.installed)
		assert.NoError(t, err)
		assert.Equal(t, c.want, got, "%q, installed %v", c.value, c.installed)
	}
	for value, installed := range map[string]bool{"core": false, "sync": false, "on": true} {
		_, err := Choose(value, installed)
		assert.Error(t, err, value)
	}
}

func TestLate(t *testing.T) {
	for id, want := range map[string]bool{
		"UNASSIGNED-VkFence-state-timeout":                         true,
		"UNASSIGNED-VkQueue-state-timeout":                         true,
		"INTERNAL-ERROR-VkSemaphore-state-timeout":                 true,
		"UNASSIGNED-VkFence-state":                                 false,
		"UNASSIGNED-CoreValidation-DrawState-InvalidCommandBuffer": false,
		"VUID-vkCmdDispatch-None-02697":                            false,
		"":                                                         false,
	} {
		assert.Equal(t, want, Late(vk.Message{Error: true, ID: id}), id)
	}
}
