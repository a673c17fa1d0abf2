package shaders

// The features of a kernel whose page pools are reached by device address.
var deviceAddress = []string{"bufferDeviceAddress", "shaderInt64"}

// requires maps a kernel to the device features it needs; a kernel that needs none
// is not listed. A test compares it with the capabilities in the SPIR-V.
var requires = map[string][]string{
	"kv_insert_da":       deviceAddress,
	"kv_gather_da":       deviceAddress,
	"kv_gather_slots_da": deviceAddress,
	"attn_decode_da":     deviceAddress,
	"attn_prefill_da":    deviceAddress,

	"bench_matrix_cm":  {"cooperativeMatrix", "coopmat.f16.f32", "shaderFloat16", "vulkanMemoryModel"},
	"bench_matrix_cmb": {"cooperativeMatrix", "coopmat.bf16.f32", "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix", "shaderFloat16", "vulkanMemoryModel"},
}
