#!/usr/bin/env bash
# ggml 0.27.0, with which llama.cpp computes, has backends that differ by more than rounding, and it
# is not always the GPU's that is off:
#   - argmax of equal numbers is the last of them on the CPU, and on Vulkan any of them;
#   - expm1 of 1e-8 is 0 on the CPU, where it is exp less 1, and right on Vulkan; tanh of it is 0 on
#     Vulkan and right on the CPU;
#   - gelu_quick of 70000 is infinite on the CPU, which looks it up by float16, and of -70000 NaN;
#   - softplus of -20 is 0 on both, where 2e-9 is due, and of -10 right to four digits.
#
# One would expect the CPU's to be right, as the other backends are tested against it; argmax to be
# the first, as in numpy; and expm1 to be there for small numbers. Logits rounded to half precision
# are often equal: the greedy choice among them depends on the device.
#
# Vulkan is Mesa's software driver here. Needs a C compiler and a Debian mirror among apt's sources.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
version=0.27.0-1~bpo13+1
get trixie-backports "libggml-dev=$version" "libggml0=$version" "libggml0-backend-vulkan=$version" \
  mesa-vulkan-drivers=26.1.6-1~bpo13+1
libs="$tmp/trixie-backports/$lib"

cat >ops.c <<'EOF'
#include <ggml-backend.h>
#include <ggml.h>
#include <stdio.h>
#include <string.h>
static struct ggml_context *context;
static struct ggml_tensor *x;
// argument makes a tensor of numbers for an operation, and show prints what the backend makes of it.
static struct ggml_tensor *argument(int n) {
    context = ggml_init((struct ggml_init_params){1 << 20, NULL, true});
    return x = ggml_new_tensor_1d(context, GGML_TYPE_F32, n);
}
static void show(ggml_backend_t backend, const char *name, const float *numbers, struct ggml_tensor *y) {
    float out[8];
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    ggml_backend_tensor_set(x, numbers, 0, ggml_nbytes(x));
    ggml_backend_graph_compute(backend, graph);
    ggml_backend_tensor_get(y, out, 0, ggml_nbytes(y));
    printf("%s:", name);
    for (int i = 0; i < ggml_nelements(y); i++) {
        int number;
        memcpy(&number, &out[i], 4);
        if (y->type == GGML_TYPE_I32) printf(" %d", number);
        else if (out[i] != out[i]) printf(" nan");
        else printf(" %.4g", out[i]);
    }
    printf("\n");
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
}
int main(int count, char **args) {
    ggml_backend_load_all_from_path(args[count - 2]);
    ggml_backend_t backend = ggml_backend_init_by_name(args[count - 1], NULL);
    if (!backend) return 1;
    const float equal[] = {3, 3, 0, 3}, ones[32] = {[5] = 1, [10] = 1, [20] = 1, [27] = 1};
    const float small[] = {1e-8f}, large[] = {70000, -70000}, negative[] = {-20};
    show(backend, "argmax of 3 3 0 3", equal, ggml_argmax(context, argument(4)));
    show(backend, "argmax of ones at 5 10 20 27", ones, ggml_argmax(context, argument(32)));
    show(backend, "expm1 of 1e-8", small, ggml_expm1(context, argument(1)));
    show(backend, "tanh of 1e-8", small, ggml_tanh(context, argument(1)));
    show(backend, "gelu_quick of 70000 -70000", large, ggml_gelu_quick(context, argument(2)));
    show(backend, "softplus of -20", negative, ggml_softplus(context, argument(1)));
}
EOF
mkdir include
cp trixie-backports/usr/include/gg*.h include
cc -o ops ops.c -Iinclude -L"$libs" -l:libggml.so.0 -l:libggml-base.so.0 -Wl,--allow-shlib-undefined

printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}\n' "$libs/libvulkan_lvp.so" >icd.json
export VK_DRIVER_FILES=icd.json VK_LOADER_LAYERS_DISABLE='*' LP_NATIVE_VECTOR_WIDTH=256 GGML_VK_VISIBLE_DEVICES=0
for backend in CPU Vulkan0; do
  with trixie-backports ./ops "$libs/ggml/backends0" "$backend" >"$backend" 2>log || { cat log; exit 1; }
done
cat >expected <<'EOF'
argmax of 3 3 0 3: 0
argmax of ones at 5 10 20 27: 5
expm1 of 1e-8: 1e-08
tanh of 1e-8: 1e-08
gelu_quick of 70000 -70000: 7e+04 -0
softplus of -20: 2.061e-09
EOF
echo "ggml $version"
for name in expected CPU Vulkan0; do sed "s/^/$name: /" "$name"; done
diff - <(cat CPU Vulkan0) >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
argmax of 3 3 0 3: 3
argmax of ones at 5 10 20 27: 27
expm1 of 1e-8: 0
tanh of 1e-8: 1e-08
gelu_quick of 70000 -70000: inf nan
softplus of -20: 0
argmax of 3 3 0 3: 0
argmax of ones at 5 10 20 27: 20
expm1 of 1e-8: 1e-08
tanh of 1e-8: 0
gelu_quick of 70000 -70000: 7e+04 -0
softplus of -20: 0
EOF
