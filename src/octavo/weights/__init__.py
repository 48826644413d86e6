"""Model files: readers of GGUF and safetensors, checkpoints under one set of names, and where models come from."""
