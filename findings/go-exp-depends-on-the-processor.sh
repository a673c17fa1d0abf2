#!/usr/bin/env bash
# Go's math.Exp has other bits on amd64 processors that multiply and add in one instruction than on
# older ones, from the same program, and others again on arm64 and riscv64. On amd64 it is not
# monotone either: of two neighbouring numbers the larger one can have the smaller exponential.
#
# One would expect that a compiled program computes the same on each processor of its architecture;
# the compiler itself never fuses on amd64. Weights that are compared or drawn from by a seed differ
# between two servers, and of two logits the larger one can weigh less.
set -euo pipefail
version=go1.26.8
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq qemu-user-static 2>warnings || { cat warnings; exit 1; }
dpkg -x ./*.deb tree

cat >go.mod <<'EOT'
module example.org/finding
go 1.26
EOT
cat >main.go <<'EOT'
package main

import (
	"fmt"
	"math"
)

func main() {
	x, sum := -0.255868823242278, uint64(0)
	for i := range 10000 {
		sum = sum*31 + math.Float64bits(math.Exp(-float64(i)/1000))
	}
	fmt.Printf("exp(%.17g) %#x\n", x, math.Float64bits(math.Exp(x)))
	x = math.Nextafter(x, 0)
	fmt.Printf("exp(%.17g) %#x\n", x, math.Float64bits(math.Exp(x)))
	fmt.Printf("10000 more, hashed %#x\n", sum)
}
EOT
export GOTOOLCHAIN="$version" CGO_ENABLED=0
for arch in amd64 arm64 riscv64; do GOARCH=$arch go build -o "$arch" .; done
on() { "tree/usr/bin/qemu-$1-static" "${@:2}"; }
on aarch64 ./arm64 >arm64.seen
on riscv64 ./riscv64 | cmp - arm64.seen
on x86_64 -cpu max,fma=off ./amd64 >older.seen
on x86_64 -cpu max ./amd64 >newer.seen
if [ "$(uname -m)" = x86_64 ] && grep -qw fma /proc/cpuinfo; then ./amd64 | cmp - newer.seen; fi

echo "$version on arm64 (expected everywhere)"
cat arm64.seen
echo "on amd64 without and with fused multiply-add (seen)"
diff --side-by-side --width=110 older.seen newer.seen || true
cat >wanted <<'EOT'
exp(-0.255868823242278) 0x3fe8c69a5b50def2
exp(-0.25586882324227794) 0x3fe8c69a5b50def2
10000 more, hashed 0xd70e43cbf3c9d0e0
exp(-0.255868823242278) 0x3fe8c69a5b50def3
exp(-0.25586882324227794) 0x3fe8c69a5b50def2
10000 more, hashed 0xa64df6171eb2719
EOT
cat older.seen newer.seen | diff wanted - >changed || { cat changed; echo "this has changed"; exit 1; }
