package knowncaps

import (
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Owned returns the devices that people own, with the drivers that they have: discrete's kinds,
// their relatives, and the vendors' own drivers. Where their numbers are from stands with the
// drivers; compute units are those of the model behind the row.
func Owned() []Device {
	all, plain := features(modern, halves, matrices, brains), features(modern, halves)
	f16, small := features(modern, halves, matrices), []vk.CoopMatShape{shape(8, 8, 16, "f16"), shape(8, 8, 16, "bf16")}
	wide := []vk.CoopMatShape{shape(8, 16, 16, "f16"), shape(8, 16, 16, "bf16")}
	dotted := features(modern, halves, matrices, dots)
	panther := intel(0xb080, 16, 49152, 4, all, wide...)
	panther.MaxWorkgroupSubgroups = 32
	return append(discrete(), []Device{
		{"Ampere", vk.TypeDiscrete, nvidia(82, 32, all, ampere...), true, tuning.DriverNVIDIA},          // RTX 3090
		{"Blackwell", vk.TypeDiscrete, nvidia(170, 32, all, ampere...), true, tuning.DriverNVIDIA},      // RTX 5090
		{"Turing without matrices", vk.TypeDiscrete, nvidia(22, 32, plain), false, tuning.DriverNVIDIA}, // GTX 1660; llama.cpp#4682
		{"RDNA1", vk.TypeDiscrete, radv(40, plain), false, tuning.DriverRADV},                           // RX 5700 XT; llama.cpp#13324
		{"RDNA3.5", vk.TypeIntegrated, radv(40, dotted, square), false, tuning.DriverRADV},              // Strix Halo
		{"RDNA2, AMD's driver", vk.TypeDiscrete, amdOwn(60, plain), false, tuning.DriverAMD},            // RX 6800
		{"RDNA2, AMD's driver of 2022", vk.TypeDiscrete, amdOwn2022(16), false, tuning.DriverAMD},       // RX 6500 XT
		{"RDNA3.5, AMD's driver", vk.TypeIntegrated, amdOwn(40, f16, square), false, tuning.DriverAMD},  // Strix Halo
		{"RDNA4, AMD's driver", vk.TypeDiscrete, amdOwn(64, f16, square), false, tuning.DriverAMD},      // RX 9070 XT
		{"Meteor Lake", vk.TypeIntegrated, intel(0x7d55, 8, 49152, 4, plain), false, tuning.DriverANV},
		{"Arrow Lake H", vk.TypeIntegrated, intel(0x7d51, 8, 49152, 4, all, small...), false, tuning.DriverANV}, // Arc 140T
		{"Lunar Lake", vk.TypeIntegrated, intel(0x64a0, 16, 49152, 4, all, wide...), false, tuning.DriverANV},   // Arc 140V
		{"Panther Lake", vk.TypeIntegrated, panther, false, tuning.DriverANV},                                   // Arc B390
		{"Arc A, Intel's driver", vk.TypeDiscrete, intelOwn(0x56a0, 8, 32768, small[0]), false, tuning.DriverIntelWindows},
		{"Arc B, Intel's driver", vk.TypeDiscrete, intelOwn(0xe20b, 16, 49152, wide[0]), false, tuning.DriverIntelWindows},
		{"Arrow Lake H, Intel's driver", vk.TypeIntegrated, intelOwn(0x7d51, 8, 49152, small[0]), false, tuning.DriverIntelWindows},
		{"Lunar Lake, Intel's driver", vk.TypeIntegrated, intelOwn(0x64a0, 16, 49152, wide[0]), false, tuning.DriverIntelWindows},
	}...)
}
