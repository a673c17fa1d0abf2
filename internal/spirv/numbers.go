package spirv

// Opcodes.
const (
	opName                  = 5
	opMemberName            = 6
	opString                = 7
	opLine                  = 8
	opExtension             = 10
	opExtInstImport         = 11
	opExtInst               = 12
	opMemoryModel           = 14
	opEntryPoint            = 15
	opExecutionMode         = 16
	opCapability            = 17
	opTypeBool              = 20
	opTypeInt               = 21
	opTypeFloat             = 22
	opTypeVector            = 23
	opTypeMatrix            = 24
	opTypeArray             = 28
	opTypeRuntimeArray      = 29
	opTypeStruct            = 30
	opTypePointer           = 32
	opConstantTrue          = 41
	opConstantFalse         = 42
	opConstant              = 43
	opConstantComposite     = 44
	opSpecConstantTrue      = 48
	opSpecConstantFalse     = 49
	opSpecConstant          = 50
	opSpecConstantComposite = 51
	opSpecConstantOp        = 52
	opFunction              = 54
	opFunctionEnd           = 56
	opFunctionCall          = 57
	opVariable              = 59
	opDecorate              = 71
	opMemberDecorate        = 72
	opDecorationGroup       = 73
	opPhi                   = 245
	opLoopMerge             = 246
	opSelectionMerge        = 247
	opLabel                 = 248
	opBranch                = 249
	opBranchConditional     = 250
	opSwitch                = 251
	opUnreachable           = 255
	opNoLine                = 317
	opExecutionModeID       = 331
	opDecorateID            = 332
	opDecorateString        = 5632

	opTypeFirst, opTypeLast = 19, 39 // types of SPIR-V 1.0
	opFirstOfVendors        = 5000   // and all above
)

// ends are the instructions that end a block: branches, OpKill, OpReturn, OpReturnValue,
// OpUnreachable, OpTerminateInvocation.
var ends = []uint16{opBranch, opBranchConditional, opSwitch, 252, 253, 254, opUnreachable, 4416}

// noType are instructions that define something without a type: types besides those above, of
// SPIR-V 1.1 and of extensions, too.
var noType = []uint16{
	opString, opExtInstImport, opDecorationGroup, opLabel,
	322, 327, 4163, 4417, 4456, 4472, 5281, 5288, 5341, 5358, 5370, 5371,
}

// noResult are instructions that define nothing, though they have two operands or more: about the
// module, about memory, and about where a block goes on.
var noResult = []uint16{
	2, 3, 4, opMemberName, opLine, opExtension, opMemoryModel, opEntryPoint, opExecutionMode, opCapability,
	62, 63, 64, opMemberDecorate, 74, 75, 99, 224, 225, 228, opLoopMerge, opSelectionMerge, opBranch, opBranchConditional,
	opSwitch, 254, 256, 257, 319, 330, opExecutionModeID,
	4165, 4426, 4458, 4473, 4475, 5294, 5295, 5303, 5360, 5368, 5633,
}

// Operations that OpSpecConstantOp may name and that array lengths use.
const (
	opCompositeExtract     = 81
	opUConvert             = 113
	opSConvert             = 114
	opBitcast              = 124
	opIAdd                 = 128
	opISub                 = 130
	opIMul                 = 132
	opUDiv                 = 134
	opSDiv                 = 135
	opUMod                 = 137
	opSRem                 = 138
	opSMod                 = 139
	opLogicalOr            = 166
	opLogicalAnd           = 167
	opLogicalNot           = 168
	opSelect               = 169
	opIEqual               = 170
	opINotEqual            = 171
	opUGreaterThan         = 172
	opSGreaterThan         = 173
	opUGreaterThanEqual    = 174
	opSGreaterThanEqual    = 175
	opULessThan            = 176
	opSLessThan            = 177
	opULessThanEqual       = 178
	opSLessThanEqual       = 179
	opShiftRightLogical    = 194
	opShiftRightArithmetic = 195
	opShiftLeftLogical     = 196
	opBitwiseOr            = 197
	opBitwiseXor           = 198
	opBitwiseAnd           = 199
)

// Decorations, storage classes, execution modes, built-ins and models.
const (
	decorationSpecID        = 1
	decorationBuiltIn       = 11
	decorationNonWritable   = 24
	decorationNonReadable   = 25
	decorationBinding       = 33
	decorationDescriptorSet = 34
	decorationOffset        = 35

	classUniform       = 2
	classWorkgroup     = 4
	classPushConstant  = 9
	classStorageBuffer = 12

	modeLocalSize   = 17
	modeLocalSizeID = 38

	builtInNumWorkgroups = 24
	builtInWorkgroupSize = 25
	modelGLCompute       = 5
)

// Capability is a number of OpCapability.
type Capability uint32

// Capabilities that matter to this project.
const (
	Shader                    Capability = 1
	Float16                   Capability = 9
	Float64                   Capability = 10
	Int64                     Capability = 11
	Int16                     Capability = 22
	Int8                      Capability = 39
	GroupNonUniform           Capability = 61
	GroupNonUniformArithmetic Capability = 63
	GroupNonUniformShuffle    Capability = 65
	StorageBuffer16BitAccess  Capability = 4433
	StorageBuffer8BitAccess   Capability = 4448
	VulkanMemoryModel         Capability = 5345
	PhysicalStorageBuffer     Capability = 5347
	CooperativeMatrix         Capability = 6022
	BFloat16Type              Capability = 5116
	BFloat16CoopMatrix        Capability = 5118
	IntegerDotPacked          Capability = 6018
	IntegerDot                Capability = 6019
	MixedDot                  Capability = 6912
	Float8                    Capability = 4212
	Float8CoopMatrix          Capability = 4213
)

// capabilityFeatures maps a capability to the device feature without which a
// module that declares it must not be created; empty for what every Vulkan 1.2
// device with compute has. Basic subgroup operations are such; of the others
// those that a kernel uses are listed.
var capabilityFeatures = map[Capability]string{
	0: "", Shader: "", GroupNonUniform: "",
	GroupNonUniformArithmetic: "subgroupArithmetic",
	64:                        "subgroupBallot",
	GroupNonUniformShuffle:    "subgroupShuffle",
	Float16:                   "shaderFloat16",
	Float64:                   "shaderFloat64",
	Int64:                     "shaderInt64",
	Int16:                     "shaderInt16",
	Int8:                      "shaderInt8",
	StorageBuffer16BitAccess:  "storageBuffer16BitAccess",
	StorageBuffer8BitAccess:   "storageBuffer8BitAccess",
	VulkanMemoryModel:         "vulkanMemoryModel",
	PhysicalStorageBuffer:     "bufferDeviceAddress",
	CooperativeMatrix:         "cooperativeMatrix",
	BFloat16Type:              "shaderBFloat16Type",
	BFloat16CoopMatrix:        "shaderBFloat16CooperativeMatrix",
	MixedDot:                  mixedDot,
	IntegerDotPacked:          "shaderIntegerDotProduct",
	IntegerDot:                "shaderIntegerDotProduct",
	Float8:                    "shaderFloat8",
	Float8CoopMatrix:          "shaderFloat8CooperativeMatrix",
}

const mixedDot = "shaderMixedFloatDotProductFloat16AccFloat32"
