package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDriverHint holds what is said to be installed where there is no driver.
func TestDriverHint(t *testing.T) {
	env := map[string]string{}
	hint := func(system, release string, noLoader bool) string {
		return driverHint(system, release, func(name string) string { return env[name] }, noLoader)
	}
	for release, want := range map[string]string{
		"NAME=x\nID=debian\n":                     "apt install libvulkan1 mesa-vulkan-drivers",
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"": "apt install",
		"ID=fedora": "dnf install",
		"ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"": "zypper install",
		"ID=arch":  "pacman -S",
		"ID=other": "Mesa's Vulkan drivers",
		"":         "Mesa's Vulkan drivers",
	} {
		assert.Contains(t, hint("linux", release, false), want, release)
	}
	assert.Contains(t, hint("windows", "", true), "vulkan-1.dll")
	assert.Contains(t, hint("darwin", "", true), "MoltenVK")
	env["VK_DRIVER_FILES"] = "/nowhere/x.json"
	assert.Equal(t, `VK_DRIVER_FILES is "/nowhere/x.json", which is not there`, hint("linux", "ID=debian", false))
	assert.Contains(t, hint("linux", "ID=debian", true), "apt install", "no variable names a loader")
	env["VK_DRIVER_FILES"] = t.TempDir()
	assert.Contains(t, hint("linux", "", false), "only the drivers of VK_DRIVER_FILES=")
}

// TestNoDriver holds that a command without a driver says why.
func TestNoDriver(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "no-driver.json")
	t.Setenv("VK_DRIVER_FILES", nowhere)
	t.Setenv("VK_ICD_FILENAMES", nowhere)
	code, _, stderr := command("info")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, nowhere+`", which is not there`)
}
