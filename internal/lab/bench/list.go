package bench

// Listed is a case by its names: what -o json and csv call it, and --op and --case choose by.
type Listed struct {
	Suite string `json:"suite"`
	Op    string `json:"op"` // the suite's name in suites of layers and models
	Case  string `json:"case"`
}

// List returns the cases of a suite as options ask for them on a GPU; on a processor defaults are
// fewer. ops are for suites of single operations, models for the others. Errors: vk.ErrArgument.
func List(suite string, ops OpOptions, models LayerOptions) (list []Listed, err error) {
	add := func(op, name string) { list = append(list, Listed{suite, op, name}) }
	if modelSuites[suite] {
		err = models.check(suite, suite != "prefill")
	}
	switch {
	case err != nil:
	case suite == "layer":
		models = models.withDefaults(false)
		err = models.checkKinds()
		for _, x := range models.layers() {
			c := models.config(x.Model)
			for _, shape := range models.stepShapes(x.Model, c, c.Layers[layerOf(c, x.Kind)].LayerSpec) {
				add(suite, x.of(shape).title())
			}
		}
	case suite == "step":
		for _, x := range models.stepDefaults(false).steps() {
			add(suite, x.title())
		}
	case suite == "prefill":
		for _, x := range models.promptDefaults(false).prompts() {
			add(suite, x.title())
		}
	default:
		asked, err := ops.check(suite)
		if err != nil {
			return nil, err
		}
		for _, c := range ops.withDefaults(false).cases(asked) {
			add(c.op.Name, c.size.Name)
		}
	}
	return list, err
}

// modelSuites are those of layers and models.
var modelSuites = map[string]bool{"layer": true, "step": true, "prefill": true}
