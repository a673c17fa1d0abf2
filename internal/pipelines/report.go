package pipelines

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// Row is what a driver's compiler made of a kernel. A number that the driver does not
// give is -1.
type Row struct {
	Kernel    string         `json:"kernel"`
	Constants []uint32       `json:"constants"` // specialisation constants, in the order of their ids
	Subgroup  uint32         `json:"subgroup"`  // size asked for, 0 for any
	Hot       bool           `json:"hot"`
	Registers float64        `json:"registers"`        // 32-bit, of an invocation (AMD: VGPRs)
	Scalar    float64        `json:"scalar_registers"` // of a subgroup (AMD: SGPRs)
	Shared    float64        `json:"shared_bytes"`     // of a workgroup
	Spills    float64        `json:"spills"`           // registers, or bytes where the driver counts those
	Occupancy float64        `json:"occupancy"`        // subgroups that a SIMD unit can hold at once
	Code      float64        `json:"code_bytes"`
	Other     []vk.Statistic `json:"other,omitempty"` // as the driver names them
}

// local is where NVIDIA's driver begins to count local memory: more is a spill.
const local = 1 << 36

// Report gives a row for each kernel that was built on a device.
//
// Errors: those of vk.Device.Statistics.
func Report(dev *vk.Device) ([]Row, error) {
	var rows []Row
	for _, k := range dev.Kernels() {
		list, err := dev.Statistics(k)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row(k, list, Hot(k.Name(), dev.Caps().Features["coopmat.f16.f32"])))
	}
	return rows, nil
}

func row(k *vk.Kernel, list []vk.Statistic, hot bool) Row {
	r := Row{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize(), Hot: hot,
		Registers: -1, Scalar: -1, Shared: -1, Spills: -1, Occupancy: -1, Code: -1}
	spilled := func(n float64) { r.Spills = max(r.Spills, 0) + n }
	for _, s := range list {
		switch strings.ToLower(s.Name) {
		case "vgprs", "register count":
			r.Registers = s.Value
		case "sgprs":
			r.Scalar = s.Value
		case "lds size", "shared memory size":
			r.Shared = s.Value
		case "spilled sgprs", "spilled vgprs", "scratch size":
			spilled(s.Value)
		case "local memory size":
			if s.Value >= local {
				s.Value -= local
			}
			spilled(s.Value)
		case "subgroups per simd", "occupancy":
			r.Occupancy = s.Value
		case "code size", "binary size":
			r.Code = s.Value
		default:
			r.Other = append(r.Other, s)
		}
	}
	return r
}

// Wrong lists the rows of hot kernels that spill.
func Wrong(rows []Row) []Row {
	var bad []Row
	for _, r := range rows {
		if r.Hot && r.Spills > 0 {
			bad = append(bad, r)
		}
	}
	return bad
}

// String names the kernel with its constants, as "attn_decode_cm(64, 2)".
func (r Row) String() string {
	s := fmt.Sprint(r.Constants)
	return r.Kernel + "(" + strings.ReplaceAll(s[1:len(s)-1], " ", ", ") + ")"
}
