#!/usr/bin/env bash
# gcc 16.2 with -ffast-math cuts a float off where it becomes __bf16: 0.1f is 0x3DCC, below the
# nearest 0x3DCD, 1.0078124f is 1, and 3.4e38f the largest number, where rounding gives infinity. gcc
# 14 rounds with the same option. Doubles are rounded by both, and so are floats by 16.2 where -march
# names a processor that has an instruction for it, as znver4.
#
# One would expect of -ffast-math other sums and no NaN, but of a conversion the nearest number: that
# to _Float16 does not change with the option, nor does clang's to __bf16 from any but the smallest
# numbers. Half of all become one too small and none too large, so what is stored shrinks by a
# quarter of a per cent on average, with one release of the compiler and on one machine of two.
#
# Needs a C compiler for x86-64 and a Debian mirror among apt's sources. Seen the same with 15.3.0.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
get trixie cpp-14=14.2.0-19 libgcc-14-dev=14.2.0-19
get sid cpp-16=16.2.0-4 libgcc-16-dev=16.2.0-4

cat >convert.c <<'EOF'
void floats(__bf16 *y, const float *x) { *y = (__bf16)*x; }
void doubles(__bf16 *y, const double *x) { *y = (__bf16)*x; }
void halves(_Float16 *y, const float *x) { *y = (_Float16)*x; }
EOF
cat >main.c <<'EOF'
extern int printf(const char *, ...);
extern void floats(unsigned short *, const float *), doubles(unsigned short *, const double *);
extern void halves(unsigned short *, const float *);
int main(void) {
    const float x[] = {0.1f, 1.0078124f, 3.4e38f};
    for (int i = 0; i < 3; i++) {
        unsigned short f, d, h;
        floats(&f, &x[i]);
        doubles(&d, &(double){x[i]});
        halves(&h, &x[i]);
        printf("%.8g is %04X, from double %04X, as a half %04X\n", x[i], f, d, h);
    }
    return 0;
}
EOF
# convert SUITE VERSION OPTION...: what the program prints.
convert() {
  local part="gcc/$(gcc -print-multiarch)/$2"
  with "$1" "$1/usr/libexec/$part/cc1" -quiet -O2 "${@:3}" -o convert.s convert.c
  cc -o convert main.c convert.s "$1/usr/lib/$part/libgcc.a"
  echo "gcc $2 -O2${3:+ $3}"
  ./convert
}
{ convert trixie 14 -ffast-math && convert sid 16 && convert sid 16 -ffast-math; } >seen
echo "expected of each the same as of the first"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
gcc 14 -O2 -ffast-math
0.1 is 3DCD, from double 3DCD, as a half 2E66
1.0078124 is 3F81, from double 3F81, as a half 3C08
3.4e+38 is 7F80, from double 7F80, as a half 7C00
gcc 16 -O2
0.1 is 3DCD, from double 3DCD, as a half 2E66
1.0078124 is 3F81, from double 3F81, as a half 3C08
3.4e+38 is 7F80, from double 7F80, as a half 7C00
gcc 16 -O2 -ffast-math
0.1 is 3DCC, from double 3DCD, as a half 2E66
1.0078124 is 3F80, from double 3F81, as a half 3C08
3.4e+38 is 7F7F, from double 7F80, as a half 7C00
EOF
