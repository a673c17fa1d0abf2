// Package model describes a DeepSeek-V4 model's attention and reads its weights.
//
// A [Config] holds the sizes and the table of layers: a [Layer] is a row, whose [LayerSpec]
// says of the kind of layer how many tokens a compressed entry covers, which entries it
// attends, and which pools of pages it needs. [LoadConfig] reads a Config from config.json. A model
// with another kind of layer is another row; no code asks which kind a layer is.
//
// [Open] opens a checkpoint: the weights of the layers asked for, or one rank's part of them,
// in mapped files. [Checkpoint.Upload] puts them on a device as they are stored.
package model
