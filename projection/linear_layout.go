package projection

// layoutLanes reads from what opkit.MatrixLayout finds how many neighbouring lanes L share a row of
// the first operand of a product, and a column of the second, as proj_linear_tokens8to32 and
// proj_linear_tokens32to64 want them to. Then component i*V + v of lane l, V = k/L, is in row
// (column of the second operand) l/L + i*subgroup/L, at a place in it that depends on l%L and v
// alone and is the same for both operands. It is 0 if there is no such L.
func layoutLanes(m, n, k, subgroup int, words []uint32) int {
	if len(words) != m*k+k*n+m*n || m*k%subgroup != 0 || k*n%subgroup != 0 {
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
		for i, w := range words[:m*k+k*n] {
			row, x := int(w)/k, int(w)%k
			if i >= m*k {
				i -= m * k
				row, x = int(w)%n, int(w)/n
			}
			lane, j := i%subgroup, i/subgroup
			if x >= k || row != lane/lanes+j/v*lines {
				continue next
			}
			slot := &at[lane%lanes*v+j%v]
			if *slot == 0 && !used[x] {
				*slot, used[x] = x+1, true
			}
			if *slot != x+1 {
				continue next
			}
		}
		return lanes
	}
	return 0
}
