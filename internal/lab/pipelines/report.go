package pipelines

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/vk"
)

// Row describes what a driver's compiler made of a kernel. A number that the driver does not
// give is -1.
type Row struct {
	Kernel    string           `json:"kernel"`
	Constants []uint32         `json:"constants"` // specialisation constants, in the order of their ids
	Subgroup  uint32           `json:"subgroup"`  // size asked for, 0 for any
	Hot       bool             `json:"hot"`
	Registers float64          `json:"registers"`        // 32-bit, of an invocation (AMD: VGPRs; ANV: as many as would spill none)
	Scalar    float64          `json:"scalar_registers"` // of a subgroup (AMD: SGPRs)
	Shared    float64          `json:"shared_bytes"`     // of a workgroup
	Spills    float64          `json:"spills"`           // registers, or bytes or instructions where the driver counts those
	Occupancy float64          `json:"occupancy"`        // subgroups that a SIMD unit can hold at once
	Code      float64          `json:"code_bytes"`
	Clocks    float64          `json:"clocks"`          // that a subgroup keeps a SIMD unit busy, by the compiler
	Other     []door.Statistic `json:"other,omitempty"` // as the driver names them

	local float64 // bytes of local memory, which are among the spills
	live  float64 // most registers of 32 bytes that a subgroup holds at once (ANV)
	lanes float64 // of such a subgroup
}

const (
	// localBase is the number at which NVIDIA's driver begins to count local memory: more are
	// registers that were spilled, or an array whose places are not known when compiling.
	localBase = 1 << 36

	// fewLocal bounds the bytes of local memory of a hot kernel: four registers of an
	// invocation, as the prefill attention spills on an H100, see docs/design/prefill.md. What
	// makes kernels several times slower are arrays of matrices, of 512 bytes and more.
	fewLocal = 16
)

// Report gives a row for each kernel that was built on a device.
//
// Errors: those of vk.Device.Statistics.
func Report(dev *vk.Device) ([]Row, error) {
	var rows []Row
	for _, k := range dev.Kernels() {
		list, err := door.Statistics(dev, k)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row(k, list, Hot(k.Name(), dev.Caps().Features["coopmat.f16.f32"])))
	}
	return rows, nil
}

func row(k *vk.Kernel, list []door.Statistic, hot bool) Row {
	r := Row{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize(), Hot: hot,
		Registers: -1, Scalar: -1, Shared: -1, Spills: -1, Occupancy: -1, Code: -1, Clocks: -1}
	r.read(list)
	return r
}

// read fills in what a driver tells.
func (r *Row) read(list []door.Statistic) {
	spilled := func(n float64) { r.Spills = max(r.Spills, 0) + n }
	for _, s := range list {
		switch strings.ToLower(s.Name) {
		case "vgprs", "register count", "number of gprs": // of RADV, NVIDIA and Mesa's NVK
			r.Registers = s.Value
		case "max live registers":
			r.live = s.Value
		case "max dispatch width":
			r.lanes = s.Value
		case "sgprs":
			r.Scalar = s.Value
		case "lds size", "shared memory size", "workgroup memory size":
			r.Shared = s.Value
		case "spilled sgprs", "spilled vgprs", "spills to memory", "spills":
			spilled(s.Value)
		case "scratch size": // RADV's, in bytes, behind the registers that lie there; else arrays do
			if r.Spills <= 0 {
				spilled(s.Value)
			}
		case "local memory size":
			if s.Value >= localBase {
				s.Value -= localBase
			}
			r.local = s.Value
			spilled(s.Value)
		case "subgroups per simd", "occupancy":
			r.Occupancy = s.Value
		case "code size", "binary size":
			r.Code = s.Value
		case "inverse throughput", "cycles":
			r.Clocks = s.Value
		default:
			r.Other = append(r.Other, s)
		}
	}
	if r.live > 0 && r.lanes > 0 {
		r.Registers = r.live * 8 / r.lanes
	}
}

// Wrong lists the rows of hot kernels that spill. Up to 16 bytes of local memory do not
// count; Few lists rows that have no more than these.
func Wrong(rows []Row) []Row {
	return choose(rows, func(r Row) bool { return r.Spills > 0 && !r.few() })
}

// Few lists the rows of hot kernels with local memory that does not count.
func Few(rows []Row) []Row { return choose(rows, Row.few) }

// few tells whether there is local memory, so little that it is not judged, and nothing
// else is spilled.
func (r Row) few() bool { return r.local > 0 && r.local <= fewLocal && r.Spills == r.local }

func choose(rows []Row, f func(Row) bool) (list []Row) {
	for _, r := range rows {
		if r.Hot && f(r) {
			list = append(list, r)
		}
	}
	return list
}

// String names the kernel with its constants, as "attn_decode_cm(64, 2)".
func (r Row) String() string {
	s := fmt.Sprint(r.Constants)
	return r.Kernel + "(" + strings.ReplaceAll(s[1:len(s)-1], " ", ", ") + ")"
}
