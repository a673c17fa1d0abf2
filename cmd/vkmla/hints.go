package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vkmla/vkmla/vk"
)

// flagError says what a flag wants, in place of the function that could not read it, and which flag
// may have been meant.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		wants := map[string]string{"int": "a number", "numbers": numbersWanted, "uint64": "a number from 0 on"}
		if want := wants[bad.GetFlag().Value.Type()]; want != "" {
			return fmt.Errorf("%s: --%s is %q, want %s", cmd.Name(), bad.GetFlag().Name, bad.GetValue(), want)
		}
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	if near := nearest(unknown.GetSpecifiedName(), cmd.Flags()); near != "" {
		return fmt.Errorf("%s: %w; did you mean --%s? See %s --help", cmd.Name(), err, near, cmd.CommandPath())
	}
	return fmt.Errorf("%s: %w; see %s --help", cmd.Name(), err, cmd.CommandPath())
}

// nearest returns the flag that a name is a slip of: one at most a third of whose letters differ,
// or else one that begins with the same three; of several the shortest.
func nearest(name string, flags *pflag.FlagSet) (best string) {
	least := len(name)/3 + 1
	flags.VisitAll(func(x *pflag.Flag) {
		far := distance(name, x.Name)
		if len(name) >= 3 && strings.HasPrefix(x.Name, name[:3]) {
			far = min(far, len(name)/3)
		}
		if !x.Hidden && (far < least || far == least && len(x.Name) < len(best)) {
			best, least = x.Name, far
		}
	})
	return best
}

// distance returns how many letters have to be put in, left out, replaced or swapped with the next
// one.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := range a {
		for j := range b {
			other := 0
			if a[i] != b[j] {
				other = 1
			}
			d := min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+other)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, rows[i-1][j-1]+1)
			}
			rows[i+1][j+1] = d
		}
	}
	return rows[len(a)][len(b)]
}

// newInstance opens the Vulkan loader. Where there is none, or no driver, the error says what to
// install.
func newInstance() (*vk.Instance, error) {
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla"})
	if err == nil && len(in.Adapters()) == 0 {
		in.Close()
		err = fmt.Errorf("vk: %w: no driver lists one", vk.ErrNoDevice)
	}
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		release, _ := os.ReadFile("/etc/os-release") // without it the system is unknown
		return nil, fmt.Errorf("%w; %s", err, driverHint(runtime.GOOS, string(release), os.Getenv, errors.Is(err, vk.ErrNoLoader)))
	}
	return in, err
}

// driverHint says where a driver or the loader comes from, on a system whose /etc/os-release says
// so much of it.
func driverHint(system, release string, env func(string) string, noLoader bool) string {
	for _, name := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} {
		if value := env(name); value != "" && !noLoader {
			list := filepath.SplitList(value)
			if !slices.ContainsFunc(list, func(path string) bool { _, err := os.Stat(path); return err == nil }) {
				return fmt.Sprintf("%s is %q, which is not there", name, value)
			}
			return fmt.Sprintf("only the drivers of %s=%s are asked", name, value)
		}
	}
	switch system {
	case "windows":
		return "install the driver of the GPU's vendor: vulkan-1.dll comes with it"
	case "darwin":
		return "install MoltenVK and the Vulkan loader: brew install molten-vk vulkan-loader"
	}
	ids := map[string]bool{}
	for line := range strings.Lines(release) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "ID" || key == "ID_LIKE" {
			for id := range strings.FieldsSeq(strings.Trim(value, `"'`)) {
				ids[id] = true
			}
		}
	}
	for _, x := range []struct{ id, install string }{
		{"debian", "apt install libvulkan1 mesa-vulkan-drivers"},
		{"fedora", "dnf install vulkan-loader mesa-vulkan-drivers"},
		{"rhel", "dnf install vulkan-loader mesa-vulkan-drivers"},
		{"suse", "zypper install libvulkan1 Mesa-vulkan-device-select libvulkan_radeon libvulkan_intel"},
		{"arch", "pacman -S vulkan-icd-loader vulkan-radeon vulkan-intel"},
		{"alpine", "apk add vulkan-loader mesa-vulkan-ati mesa-vulkan-intel"},
		{"nixos", "set hardware.graphics.enable = true"},
	} {
		if ids[x.id] {
			return fmt.Sprintf("for AMD and Intel: %s; NVIDIA's comes with its driver", x.install)
		}
	}
	return "install the Vulkan loader and Mesa's Vulkan drivers (AMD, Intel); NVIDIA's comes with its driver"
}
