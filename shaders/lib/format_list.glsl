// The files of CODECS of formats.glsl, each with the sections that the including file defines.
#include "format_bf16.glsl"
#include "format_fp8.glsl"
#include "format_nvfp4.glsl"
#include "format_q8_0.glsl"
#include "format_q4_k.glsl"
