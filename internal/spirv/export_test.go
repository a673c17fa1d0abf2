package spirv

// Depth returns the largest number of functions of a module that are under way at a time: 1 where
// an entry point calls none. NVIDIA's compiler writes eight into one another.
func Depth(code []byte) int {
	head, functions, ok := split(code)
	if !ok {
		return 0
	}
	bodies := map[uint32][]inst{}
	for _, f := range functions {
		bodies[f.id] = f.code
	}
	depths := map[uint32]int{}
	var depth func(id uint32) int
	depth = func(id uint32) int {
		if n, ok := depths[id]; ok {
			return n
		}
		depths[id] = 0 // no kernel calls itself
		n := 0
		for _, in := range bodies[id] {
			if in.op == opFunctionCall {
				n = max(n, depth(in.args[2]))
			}
		}
		depths[id] = n + 1
		return n + 1
	}
	most := 0
	for _, in := range head {
		if in.op == opEntryPoint {
			most = max(most, depth(in.args[1]))
		}
	}
	return most
}
