// What a radix selection in one launch does after it counted a digit of its keys in BINS bins of
// pool_s, which become 0: it finds the bin with the key number `need` from the top. These are
// statements of a loop over digits, of the bits `shift` to `top`.
const uint first = BINS - OWN * (me + 1u); // the higher bins belong to the invocations before
uint n[OWN], x = 0u;
[[unroll]] for (uint i = 0u; i < OWN; i++) {
    n[i] = pool_s[first + i];
    pool_s[first + i] = 0u;
    x += n[i];
}
uint above = scan(x).x;
if (above < need && need <= above + x) {
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        const uint m = n[OWN - 1u - i];
        if (above < need && need <= above + m) found_s = uvec3(first + OWN - 1u - i, above, m);
        above += m;
    }
}
barrier();
const uvec3 found = found_s; // bin, how many are in higher ones, and in it
need -= found.y;
prefix |= found.x << shift;
top = shift;
bottom = max(prefix, 1u);
ceiling = prefix | ((1u << shift) - 1u);
