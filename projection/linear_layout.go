package projection

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// fragmentLanes keeps what lanesOf found, by driver, device and shape.
var fragmentLanes sync.Map

// lanesOf finds out how many neighbouring lanes share a row of the first operand of a
// product, and a column of the second, as proj_linear_thin wants them to: see layoutLanes.
// It runs a kernel of one workgroup, once for each device, and is 0 where operands lie
// otherwise or nothing is written, as by a driver that only compiles.
//
// Errors: those of building and running a kernel.
func lanesOf(dev *vk.Device, variant string, m, n, k, subgroup int) (int, error) {
	a := dev.Adapter()
	key := fmt.Sprint(a.Name, a.DriverName, a.DriverInfo, variant, m, n, k, subgroup)
	if v, ok := fragmentLanes.Load(key); ok {
		return v.(int), nil
	}
	place, err := fragmentPlaces(dev, variant, m, n, k, subgroup)
	if err != nil {
		return 0, err
	}
	lanes := layoutLanes(place, m, n, k, subgroup)
	fragmentLanes.Store(key, lanes)
	return lanes, nil
}

// fragmentPlaces is what proj_linear_layout writes.
func fragmentPlaces(dev *vk.Device, variant string, m, n, k, subgroup int) (place []float32, err error) {
	kernel, err := pkg.Kernel(dev, opkit.Spec{
		Stem: "proj_linear_layout", Variant: variant, Bindings: []vk.Access{vk.Write}, Bound: 1,
		Subgroup: uint32(subgroup), Constants: opkit.Words(subgroup, m, n, k),
	})
	if err != nil {
		return nil, err
	}
	out, err := tensor.New(dev, "fragment places", tensor.F32, 2+(m+n)*k)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	rec, err := dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := rec.Fill(out.View(), math.MaxUint32); err != nil {
		return nil, err
	}
	if err := rec.Dispatch(vk.Dispatch{Kernel: kernel, Groups: [3]uint32{1, 1, 1}, Bind: []vk.View{out.View()}}); err != nil {
		return nil, err
	}
	cmd, err := rec.End()
	if err != nil {
		return nil, err
	}
	defer cmd.Close()
	ctx := context.Background()
	if err := cmd.Run(ctx); err != nil {
		return nil, err
	}
	b := make([]byte, out.Bytes())
	if err := out.Download(ctx, b); err != nil {
		return nil, err
	}
	for ; len(b) > 0; b = b[4:] {
		place = append(place, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return place, nil
}

// layoutLanes tells from the places of all components how many lanes L share a row.
// Then component i*V + v of lane l, V = k/L, is in row (column of the second operand)
// l/L + i*subgroup/L, at a place in it that depends on l%L and v alone and is the same
// for both operands. It is 0 if there is no such L.
func layoutLanes(place []float32, m, n, k, subgroup int) int {
	if int(place[0]) != m*k/subgroup || int(place[1]) != n*k/subgroup {
		return 0
	}
next:
	for lanes := 1; lanes <= k && lanes <= subgroup; lanes *= 2 {
		v, lines := k/lanes, subgroup/lanes
		if lines > m || lines > n {
			continue
		}
		at := make([]int, k) // by lane and component, counted from 1
		used := make([]bool, k)
		operand := place[2:]
		for _, rows := range []int{m, n} {
			each := rows * k / subgroup
			for i, p := range operand[:rows*k] {
				if !(p >= 0 && p < float32(rows*k)) {
					return 0
				}
				lane, j := i/each, i%each
				row, x := int(p)/k, int(p)%k
				slot := &at[lane%lanes*v+j%v]
				if *slot == 0 && !used[x] {
					*slot, used[x] = x+1, true
				}
				if row != lane/lanes+j/v*lines || *slot != x+1 {
					continue next
				}
			}
			operand = operand[rows*k:]
		}
		return lanes
	}
	return 0
}
