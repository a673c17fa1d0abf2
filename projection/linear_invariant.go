package projection

// Kernels agree in every bit where they add the numbers of K in the same order. With
// LinearConfig.Invariant a layer has the kinds of one row of this table, so that T chooses a
// kernel but no order:
//
//	without matrices          proj_linear_tokens8to16, in passes of 4, 8 and 16 tokens
//	with, where lanes fit     proj_linear_tokens8to32 and proj_linear_tokens32to64
//	with, where they do not   the tiles of proj_linear_cm whose products are as long
//
// K is never cut into parts that scratch memory holds: there would be as many for thousands of
// tokens as for one. proj_linear_tokens8to32 has its subgroups instead, and
// proj_linear_tokens32to64 takes its rounds in their order.
//
// proj_linear_tokens1to8 is left out, whose invocations meet in an order that depends on the
// tokens and which scales sums, not weights. So are chains, which are made of it, and
// proj_linear_whole, which puts other numbers into a product.

// invariantKinds is linearKinds for LinearConfig.Invariant.
func invariantKinds(variant string) []kernelKind {
	if matrixElement[variant] == "" {
		return []kernelKind{&tokens8to16{}}
	}
	return []kernelKind{&tokens8to32{}, &tokens32to64{}, &matrixTiles{}}
}

// kindsOf is the list of kinds for a layer.
func kindsOf(cfg LinearConfig) func(variant string) []kernelKind {
	if cfg.Invariant {
		return invariantKinds
	}
	return linearKinds
}

// fewestPass is the fewest tokens of a workgroup of proj_linear_tokens8to16, for steps that have
// no other kernel.
const fewestPass = 4

// order is the division of proj_linear_tokens8to32 whose order of sums an invariant layer has: that
// for the fewest tokens, in steps that proj_linear_tokens32to64 has room for.
//
// Errors: those of divide8to32.
func (l *linearLayer) order() (division8to32, error) {
	d, err := l.divide8to32(l.tune.Tokens8to32.LeastPass)
	if d.ahead*d.lanes*l.format.quad > ScaleBlock {
		d.ahead = 1
	}
	return d, err
}

// ordered reports whether products of a shape with rows in `lanes` lanes can have an order.
func (d division8to32) ordered(k, lanes int) bool { return d.k == k && d.lanes == lanes }
