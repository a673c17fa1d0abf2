package pipelines

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Inspect is Choose with what the driver's compiler says of each kernel. Nothing is executed.
//
// Errors: those of Choose and of the driver's statistics.
func Inspect(a *vk.Adapter, profile string) ([]Choice, error) {
	knowMatrices(a)
	known := map[string]Chosen{}
	open := func() (*vk.Device, error) { return a.Open(vk.DeviceOptions{Statistics: true, Profile: profile}) }
	return Choose(open, func(dev *vk.Device, k *vk.Kernel, to *Chosen) error {
		key := fmt.Sprint(to.Kernel, to.Constants, to.Subgroup)
		if _, ok := known[key]; !ok {
			statistics, err := door.Statistics(dev, k)
			if err != nil {
				return err
			}
			to.Row = row(k, statistics, Hot(k.Name(), dev.Caps().Features["coopmat.f16.f32"]))
			known[key] = *to
		}
		*to = known[key]
		return nil
	})
}

// knowMatrices tells operations what their probes find on AMD's GPUs with matrices.
func knowMatrices(a *vk.Adapter) {
	if a.Driver == tuning.DriverRADV {
		a.Facts = &opkit.Facts{Rows: func(m, n, k, subgroup int) int {
			if m == 16 && n == 16 && k == 16 && subgroup == 32 {
				return 1
			}
			return 0
		}}
	}
}

// ChosenColumns are the columns of a table of choices, the first three of which tell rows apart.
var ChosenColumns = []string{"operation", "tokens", "kernel", "subgroup", "registers", "occupancy", "shared", "spills", "clocks"}

// ChosenRows are the rows of such a table, empty where the driver does not tell.
func ChosenRows(list []Choice) (rows [][]any) {
	num := func(v float64) string {
		if v < 0 {
			return ""
		}
		return fmt.Sprintf("%.0f", math.Ceil(v))
	}
	for _, c := range list {
		for _, k := range c.Kernels {
			r := &k.Row
			rows = append(rows, []any{c.Op, c.Tokens, r.String(), k.Subgroup, num(r.Registers), num(r.Occupancy), num(r.Shared),
				num(r.Spills), num(r.Clocks)})
		}
	}
	return rows
}
